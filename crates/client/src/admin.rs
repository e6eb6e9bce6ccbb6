//! The operator's calls.

use bytes::Bytes;
use fermata_proto as proto;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use super::connect::Client;
use super::connections::LongCallStream;
use super::error::CallError;
use super::fault::{Fault, no_answer_within};
use super::not_grpc;
use super::secret_text::public_part;

/// How many a page asks for.
const PAGE_SIZE: i32 = 500;

impl Client {
    /// The tables that the server serves, by name.
    pub async fn list_tables(&self) -> Result<Vec<proto::Table>, CallError> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let answer = self
                .call(|attempt| {
                    let request = attempt.request(proto::ListTablesRequest {
                        page_size: PAGE_SIZE,
                        page_token: page_token.clone(),
                    });
                    async move { attempt.admin().list_tables(request).await }
                })
                .await
                .map_err(|status| Fault::new(&status))?;
            all.extend(answer.message.tables);
            page_token = answer.message.next_page_token;
            if page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    /// Keys that somebody holds or waits for, in the order of their bytes, `limit` at most.
    pub async fn list_locks(
        &self,
        table: &str,
        key_prefix: &str,
        contended: bool,
        limit: usize,
    ) -> Result<Vec<proto::LockSummary>, CallError> {
        let mut all: Vec<proto::LockSummary> = Vec::new();
        let mut page_token = String::new();
        loop {
            let answer = self
                .call(|attempt| {
                    let request = attempt.request(proto::ListLocksRequest {
                        table: table.to_owned(),
                        page_size: page_size(limit, all.len()),
                        page_token: page_token.clone(),
                        key_prefix: key_prefix.to_owned(),
                        contended,
                    });
                    async move { attempt.admin().list_locks(request).await }
                })
                .await
                .map_err(|status| Fault::new(&status))?;
            all.extend(answer.message.locks);
            page_token = answer.message.next_page_token;
            if page_token.is_empty() || all.len() >= limit {
                all.truncate(limit);
                return Ok(all);
            }
        }
    }

    /// The queue of one key, with `limit` waiters at most.
    pub async fn describe_lock(
        &self,
        table: &str,
        key: &str,
        limit: usize,
    ) -> Result<proto::DescribeLockResponse, CallError> {
        let mut waiters: Vec<proto::QueueEntry> = Vec::new();
        let mut page_token = String::new();
        loop {
            let answer = self
                .call(|attempt| {
                    let request = attempt.request(proto::DescribeLockRequest {
                        key: key.to_owned(),
                        table: table.to_owned(),
                        page_size: page_size(limit, waiters.len()),
                        page_token: page_token.clone(),
                    });
                    async move { attempt.admin().describe_lock(request).await }
                })
                .await
                .map_err(|status| Fault::new(&status))?;
            let mut message = answer.message;
            waiters.append(&mut message.waiters);
            page_token = std::mem::take(&mut message.next_page_token);
            if page_token.is_empty() || waiters.len() >= limit {
                waiters.truncate(limit);
                message.waiters = waiters;
                return Ok(message);
            }
        }
    }

    /// The open sessions, `limit` at most.
    pub async fn list_sessions(&self, limit: usize) -> Result<Vec<proto::SessionInfo>, CallError> {
        let mut all: Vec<proto::SessionInfo> = Vec::new();
        let mut page_token = String::new();
        loop {
            let answer = self
                .call(|attempt| {
                    let request = attempt.request(proto::ListSessionsRequest {
                        page_size: page_size(limit, all.len()),
                        page_token: page_token.clone(),
                    });
                    async move { attempt.admin().list_sessions(request).await }
                })
                .await
                .map_err(|status| Fault::new(&status))?;
            all.extend(answer.message.sessions);
            page_token = answer.message.next_page_token;
            if page_token.is_empty() || all.len() >= limit {
                all.truncate(limit);
                return Ok(all);
            }
        }
    }

    /// The replicas of the service.
    pub async fn list_replicas(&self) -> Result<Vec<proto::ReplicaInfo>, CallError> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let answer = self
                .call(|attempt| {
                    let request = attempt.request(proto::ListReplicasRequest {
                        page_size: PAGE_SIZE,
                        page_token: page_token.clone(),
                    });
                    async move { attempt.admin().list_replicas(request).await }
                })
                .await
                .map_err(|status| Fault::new(&status))?;
            all.extend(answer.message.replicas);
            page_token = answer.message.next_page_token;
            if page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    /// What each running replica did lately, the answering one first, with `keys_max` of its busiest keys at most.
    pub async fn describe_activity(
        &self,
        keys_max: usize,
    ) -> Result<Vec<proto::ReplicaActivity>, CallError> {
        let keys_max = i32::try_from(keys_max).unwrap_or(i32::MAX);
        let answer = self
            .call(|attempt| {
                let request = attempt.request(proto::DescribeActivityRequest { keys_max });
                async move { attempt.admin().describe_activity(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message.replicas)
    }

    /// Ends an entry whatever its holder thinks; by its name, as [`Client::describe_lock`] shows it, or its lockRef. The reason is kept, and
    /// told to the former holder.
    pub async fn force_release(
        &self,
        name: &str,
        reason: &str,
        forced_by: &str,
    ) -> Result<proto::ForceReleaseResponse, CallError> {
        let answer = self
            .call(|attempt| {
                let request = attempt.request(proto::ForceReleaseRequest {
                    name: public_part(name).to_owned(),
                    reason: reason.to_owned(),
                    forced_by: forced_by.to_owned(),
                });
                async move { attempt.admin().force_release(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message)
    }

    /// Closes a session whatever its client thinks, and ends what lives by it; by its id, as [`Client::list_sessions`] shows it, or by its text.
    /// The reason is written into the audit log. True if it had ended before, or never was.
    pub async fn end_session(
        &self,
        session_id: &str,
        reason: &str,
        forced_by: &str,
    ) -> Result<bool, CallError> {
        let answer = self
            .call(|attempt| {
                let request = attempt.request(proto::EndSessionRequest {
                    session_id: public_part(session_id).to_owned(),
                    reason: reason.to_owned(),
                    forced_by: forced_by.to_owned(),
                });
                async move { attempt.admin().end_session(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message.already_ended)
    }
}

impl Client {
    /// Whether a server says that it serves (grpc.health.v1): as a whole for `""`, else what this names: a service of the
    /// contract, or `liveness`, which says that the process answers. Needs no login.
    pub async fn is_serving(&self, service: &str) -> Result<bool, CallError> {
        let answer = self
            .call(|attempt| {
                let request = attempt.request(HealthCheckRequest {
                    service: service.to_owned(),
                });
                async move { attempt.health().check(request).await }
            })
            .await
            .map_err(|status| Fault::new(&status))?;
        Ok(answer.message.status() == ServingStatus::Serving)
    }
}

/// A backup, part by part.
pub struct Backup {
    parts: tonic::Streaming<proto::BackupResponse>,
    _stream: Option<LongCallStream>,
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").finish_non_exhaustive()
    }
}

impl Backup {
    /// The next part of the file; `None` after the last. With an error the backup is not whole.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        let part = self.parts.message().await;
        let part = part.map_err(|status| Fault::new(&not_grpc::of_answer(status)))?;
        Ok(part.map(|part| part.part))
    }
}

impl Client {
    /// A backup of the embedded store of the server, of one moment.
    pub async fn back_up(&self) -> Result<Backup, CallError> {
        let permit = self.connections().watch_permit().await;
        let within = self.options().timeout;
        let (at, attempt) = self.long_attempt(within, permit);
        // No deadline for all of it: it lasts as long as the store is large.
        let request = attempt.stream_request(proto::BackupRequest {});
        let mut admin = attempt.admin();
        let begun = tokio::time::timeout(within, admin.backup(request)).await;
        let parts = begun.unwrap_or_else(|_| Err(no_answer_within(within)));
        let named = |status| self.named(at, not_grpc::of_answer(status));
        let parts = parts.map_err(|status| Fault::new(&named(status)))?;
        let parts = parts.into_inner();
        Ok(Backup {
            parts,
            _stream: attempt.into_stream(),
        })
    }
}

/// The size of the next page of at most `limit` in all.
fn page_size(limit: usize, have: usize) -> i32 {
    let left = limit.saturating_sub(have).max(1);
    i32::try_from(left).map_or(PAGE_SIZE, |left| left.min(PAGE_SIZE))
}
