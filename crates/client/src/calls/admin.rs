//! The operator's calls.

use std::mem::take;

use bytes::Bytes;
use fermata_proto as proto;
use parking_lot::Mutex;
use tonic::{Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use super::client::{Attempt, Client};
use super::error::CallError;
use super::fault::Fault;
use crate::secret_text::public_part;
use crate::transport::connections::LongCallStream;
use crate::transport::local_status::no_answer_within;
use crate::transport::not_grpc;

/// The items that a page asks for.
const PAGE_SIZE: i32 = 500;

impl Client {
    /// The tables that the server serves, by name.
    pub async fn list_tables(&self) -> Result<Vec<proto::Table>, CallError> {
        self.pages(usize::MAX, |attempt, page_size, page_token| async move {
            let request = attempt.request(proto::ListTablesRequest {
                page_size,
                page_token,
            });
            let page = attempt.admin().list_tables(request).await?;
            Ok(page.map(|page| (page.tables, page.next_page_token)))
        })
        .await
    }

    /// Keys that are held or waited for, in the order of their bytes, `limit` at most.
    pub async fn list_locks(
        &self,
        table: &str,
        key_prefix: &str,
        contended: bool,
        limit: usize,
    ) -> Result<Vec<proto::LockSummary>, CallError> {
        self.pages(limit, |attempt, page_size, page_token| async move {
            let request = attempt.request(proto::ListLocksRequest {
                table: table.to_owned(),
                page_size,
                page_token,
                key_prefix: key_prefix.to_owned(),
                contended,
            });
            let page = attempt.admin().list_locks(request).await?;
            Ok(page.map(|page| (page.locks, page.next_page_token)))
        })
        .await
    }

    /// The queue of one key, with `limit` waiters at most.
    pub async fn describe_lock(
        &self,
        table: &str,
        key: &str,
        limit: usize,
    ) -> Result<proto::DescribeLockResponse, CallError> {
        let described = &Mutex::new(proto::DescribeLockResponse::default());
        let waiters = self.pages(limit, |attempt, page_size, page_token| async move {
            let request = attempt.request(proto::DescribeLockRequest {
                key: key.to_owned(),
                table: table.to_owned(),
                page_size,
                page_token,
            });
            let page = attempt.admin().describe_lock(request).await?;
            Ok(page.map(|mut page| {
                let waiters = (take(&mut page.waiters), take(&mut page.next_page_token));
                *described.lock() = page;
                waiters
            }))
        });
        let waiters = waiters.await?;
        let described = take(&mut *described.lock());
        Ok(proto::DescribeLockResponse {
            waiters,
            ..described
        })
    }

    /// The open sessions, `limit` at most.
    pub async fn list_sessions(&self, limit: usize) -> Result<Vec<proto::SessionInfo>, CallError> {
        self.pages(limit, |attempt, page_size, page_token| async move {
            let request = attempt.request(proto::ListSessionsRequest {
                page_size,
                page_token,
            });
            let page = attempt.admin().list_sessions(request).await?;
            Ok(page.map(|page| (page.sessions, page.next_page_token)))
        })
        .await
    }

    /// The replicas of the service.
    pub async fn list_replicas(&self) -> Result<Vec<proto::ReplicaInfo>, CallError> {
        self.pages(usize::MAX, |attempt, page_size, page_token| async move {
            let request = attempt.request(proto::ListReplicasRequest {
                page_size,
                page_token,
            });
            let page = attempt.admin().list_replicas(request).await?;
            Ok(page.map(|page| (page.replicas, page.next_page_token)))
        })
        .await
    }

    /// The first `limit` items of a listing. `list` takes the size and the token of a page, and returns the items and the token
    /// of the next page.
    async fn pages<T, F, Fut>(&self, limit: usize, list: F) -> Result<Vec<T>, CallError>
    where
        F: Fn(Attempt, i32, String) -> Fut,
        Fut: Future<Output = Result<Response<(Vec<T>, String)>, Status>>,
    {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let left = limit.saturating_sub(all.len()).max(1);
            let size = i32::try_from(left).map_or(PAGE_SIZE, |left| left.min(PAGE_SIZE));
            let answer = self
                .call(|attempt| list(attempt, size, token.clone()))
                .await;
            let (items, next) = answer.map_err(|status| Fault::new(&status))?.message;
            all.extend(items);
            token = next;
            if token.is_empty() || all.len() >= limit {
                all.truncate(limit);
                return Ok(all);
            }
        }
    }

    /// The recent activity of each running replica, the answering one first, with `keys_max` of its busiest keys at most.
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

    /// Ends an entry by force. Takes its name, as [`Client::describe_lock`] shows it, or its lockRef. The service keeps the
    /// reason, and answers it to the former holder.
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

    /// Closes a session by force, and ends all its locks. Takes its id, as [`Client::list_sessions`] shows it, or its text. The
    /// reason goes to the audit log. True if the session had ended before, or never existed.
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
    /// Asks a server whether it serves (grpc.health.v1). `service` is a service of the contract, `""` for the server as a whole,
    /// or `liveness` for the process. Needs no login.
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
    /// The next part of the file; `None` after the last. After an error the backup is incomplete.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        let part = self.parts.message().await;
        let part = part.map_err(|status| Fault::new(&not_grpc::of_answer(status)))?;
        Ok(part.map(|part| part.part))
    }
}

impl Client {
    /// Backs up the embedded store of the server, as it is at one moment.
    pub async fn back_up(&self) -> Result<Backup, CallError> {
        let permit = self.connections().watch_permit().await;
        let within = self.options().timeout;
        let (at, attempt) = self.long_attempt(permit);
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
