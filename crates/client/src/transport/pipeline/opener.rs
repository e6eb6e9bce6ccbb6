//! Opens the stream of a Pipeline, and makes the calls that go by themselves.

use std::time::Duration;

use fermata_proto::lock_service_client::LockServiceClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::call::Call;
use crate::transport::call_metadata::CallMetadata;
use crate::transport::not_grpc;

/// The largest answer that is taken. Values are at most 64 MiB by any configuration.
pub(crate) const ANSWER_BYTES_MAX: usize = 65 * 1024 * 1024;

/// A connection, and the metadata of its calls.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) channel: Channel,
    pub(crate) metadata: CallMetadata,
}

impl Opener {
    pub(crate) fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// A request; without `timeout` of a call that stays open.
    pub(crate) fn request<T>(&self, message: T, timeout: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        self.metadata.put_on(&mut request);
        request
    }

    /// Makes a call of its own.
    pub(crate) async fn by_itself<C: Call>(
        &self,
        call: C,
        timeout: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let request = self.request(call, Some(timeout));
        let answer = C::by_itself(self.locks(), request).await;
        answer.map_err(not_grpc::of_answer)
    }
}
