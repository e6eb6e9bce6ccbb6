//! The task that looks at the leases every tick and acts on what fired.

use std::sync::Arc;

use super::actor::Msg;
use super::inner::Inner;
use super::leases::{Alarm, TICK};
use super::sessions;

/// How many alarms are taken at one look.
const FIRE_MAX: usize = 10_000;

/// Runs until the engine stops.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut stopping = inner.stopping.subscribe();
    // What could not be handed over at the last read, because the key had its hands full.
    let mut again: Vec<Alarm> = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = inner.clock.sleep(TICK) => {}
        }
        let mut fired = std::mem::take(&mut again);
        fired.extend(inner.leases.fire(FIRE_MAX));
        for alarm in fired {
            if let Some(failed) = act(&inner, alarm) {
                again.push(failed);
            }
        }
    }
}

/// Acts on one alarm; gives it back if that has to wait.
fn act(inner: &Arc<Inner>, alarm: Alarm) -> Option<Alarm> {
    let sent = match &alarm {
        Alarm::Session(session) => {
            tracing::info!(%session, "a session expired");
            tokio::spawn(sessions::end(Arc::clone(inner), *session));
            return None;
        }
        Alarm::Entry(entry_id) => {
            let msg = Msg::Expired { seq: entry_id.seq };
            inner.keys.send(inner, &entry_id.id, msg)
        }
        Alarm::Claim(entry_id, grant) => {
            let msg = Msg::Claim {
                seq: entry_id.seq,
                grant: *grant,
            };
            inner.keys.send(inner, &entry_id.id, msg)
        }
    };
    match sent {
        Ok(()) => None,
        Err(_) => Some(alarm),
    }
}
