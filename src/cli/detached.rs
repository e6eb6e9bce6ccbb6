//! Work that may block for ever, in threads for which the end of the process does not wait. (It waits for those of the runtime, for a moment.)

use std::io;

use tokio::sync::oneshot;

/// What `work` gives, done in a thread of this name. It goes on though this is dropped.
pub async fn detached<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, answered) = oneshot::channel();
    let work = move || {
        // Nobody may wait for it any more.
        let _ = answer.send(work());
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)?;
    let ended = |_| io::Error::other(format!("the thread {name} ended early"));
    answered.await.map_err(ended)?
}
