//! Counters under the lock, while requests to the store fail, holders vanish, and calls are dropped half way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fermata::engine::EngineError;
use fermata::lock::{Fence, KeyId, LockRef};
use fermata::store::CellStore;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::faulty::FaultyCells;
use super::rng::{Rng, seed};
use super::world::{Replica, World, call, grant};

const SPAN: Duration = Duration::from_secs(8);
const KEYS: u64 = 8;
const CLIENTS: usize = 3;

/// What each holder did, by its token.
type Told = BTreeMap<Fence, Section>;

/// A holder that read a value. It writes one more, or nothing.
#[derive(Clone, Copy, Debug)]
struct Section {
    read: u64,
    wrote: Wrote,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrote {
    Nothing,
    Unknown,
    /// After a write in doubt it read this.
    Settled(u64),
    Acknowledged,
}

struct Client {
    replicas: Vec<Replica>,
    id: KeyId,
    told: Arc<Mutex<Told>>,
    rng: Rng,
}

impl Client {
    fn replica(&mut self) -> Replica {
        let at = self.rng.below(self.replicas.len() as u64);
        self.replicas[usize::try_from(at).unwrap()].clone()
    }

    /// A lockRef that holds the key; `None` if it ended before.
    async fn hold(&mut self) -> Option<LockRef> {
        let create = call(&self.id, Duration::from_secs(1));
        let mut lock_ref = loop {
            // A call may be dropped at any time, and is repeated.
            let within = self.rng.ms(5, 2_000);
            let replica = self.replica();
            match timeout(within, replica.0.create(create.clone())).await {
                Ok(Ok(created)) => break created.lock_ref,
                Ok(Err(EngineError::Unavailable(_))) | Err(_) => continue,
                Ok(Err(EngineError::Ended(_))) => return None,
                Ok(Err(error)) => panic!("{error:?}"),
            }
        };
        loop {
            let within = self.rng.ms(5, 2_000);
            let replica = self.replica();
            match timeout(within, replica.0.acquire(&lock_ref, within, false)).await {
                Ok(Ok(acquired)) => {
                    lock_ref = acquired.lock_ref;
                    if grant(&acquired.status).is_some() {
                        return Some(lock_ref);
                    }
                }
                Ok(Err(EngineError::Unavailable(_))) | Err(_) => {}
                Ok(Err(EngineError::Ended(_))) => return None,
                Ok(Err(error)) => panic!("{error:?}"),
            }
        }
    }

    async fn section(&mut self) {
        let Some(held) = self.hold().await else {
            return;
        };
        let token = held.grant.unwrap();
        let mut number = 0;
        let mut next_number = || {
            number += 1;
            number
        };
        let read = loop {
            match self.replica().get(&held, next_number()).await {
                Ok(read) => break read.unwrap_or(0),
                Err(EngineError::Unavailable(_) | EngineError::WriteUnknown(_)) => {}
                Err(EngineError::Ended(_)) => return,
                Err(error) => panic!("{error:?}"),
            }
        };
        let told = Arc::clone(&self.told);
        let note = |wrote| told.lock().insert(token, Section { read, wrote });
        note(Wrote::Nothing);
        // Whatever comes late: a holder reads the same again.
        if self.rng.below(2) == 0 {
            sleep(self.rng.ms(0, 400)).await;
            match self.replica().get(&held, next_number()).await {
                Ok(again) => assert_eq!(again.unwrap_or(0), read, "{token} read another value"),
                Err(EngineError::Unavailable(_) | EngineError::WriteUnknown(_)) => {}
                Err(EngineError::Ended(_)) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
        match self.rng.below(40) {
            // It vanishes: its TTL ends its lock.
            0 => return,
            // It only reads.
            1..15 => {}
            _ => loop {
                let number = next_number();
                match self.replica().put(&held, read + 1, number).await {
                    Ok(()) => {
                        note(Wrote::Acknowledged);
                        break;
                    }
                    Err(EngineError::WriteUnknown(_)) => {
                        note(Wrote::Unknown);
                        // What it reads next is so from then on.
                        if self.rng.below(4) > 0 {
                            if let Ok(read) = self.replica().get(&held, next_number()).await {
                                note(Wrote::Settled(read.unwrap_or(0)));
                            }
                            break;
                        }
                    }
                    Err(EngineError::Unavailable(_)) => {}
                    Err(EngineError::Ended(_)) => return,
                    Err(error) => panic!("{error:?}"),
                }
            },
        }
        loop {
            match self.replica().release(&held).await {
                Ok(_) | Err(EngineError::Ended(_)) => return,
                Err(EngineError::Unavailable(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

pub async fn counters_are_exact_while_requests_fail_and_holders_vanish(world: World) {
    let seed = seed(20_261_129);
    let mut rng = Rng::new(seed);
    let faulty: Vec<_> = (0..2)
        .map(|_| {
            let cells = Arc::clone(&world.cells);
            FaultyCells::new(cells, Rng::new(rng.next()), 10 + rng.below(15))
        })
        .collect();
    let replicas: Vec<Replica> = faulty
        .iter()
        .map(|cells| world.replica_on(Arc::clone(cells) as Arc<dyn CellStore>))
        .collect();
    let keys: Vec<(KeyId, Arc<Mutex<Told>>)> = (0..KEYS)
        .map(|key| (world.key(&format!("{seed}-{key}")), Arc::default()))
        .collect();
    let over = Arc::new(AtomicBool::new(false));
    let each_client = keys
        .iter()
        .flat_map(|key| std::iter::repeat_n(key, CLIENTS));
    let clients = each_client.map(|(id, told)| {
        let mut client = Client {
            replicas: replicas.clone(),
            id: id.clone(),
            told: Arc::clone(told),
            rng: Rng::new(rng.next()),
        };
        let over = Arc::clone(&over);
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                client.section().await;
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    sleep(SPAN).await;
    over.store(true, Ordering::Relaxed);
    for client in clients {
        timeout(Duration::from_secs(60), client)
            .await
            .unwrap()
            .unwrap();
    }
    let mut sections = 0;
    for (id, told) in keys {
        let replica = world.replica();
        let last = replica.hold(&id, Duration::from_secs(20)).await;
        let read = replica.get(&last, 0).await.unwrap().unwrap_or(0);
        let mut told = told.lock();
        let (token, wrote) = (last.grant.unwrap(), Wrote::Nothing);
        told.insert(token, Section { read, wrote });
        are_exact(&told);
        sections += told.len();
    }
    assert!(sections > 20, "{sections} sections");
}

/// Each holder reads what the one before it left.
fn are_exact(told: &Told) {
    let mut expected = vec![0];
    for (token, section) in told {
        let Section { read, wrote } = *section;
        assert!(
            expected.contains(&read),
            "{token} read {read}, not one of {expected:?}: {told:?}"
        );
        expected = match wrote {
            Wrote::Nothing => vec![read],
            Wrote::Unknown => vec![read, read + 1],
            Wrote::Settled(read) => vec![read],
            Wrote::Acknowledged => vec![read + 1],
        };
    }
}

/// Without a fence nothing but the lock keeps holders apart. No TTL passes here: each holder works for a part of it only.
pub async fn one_holder_at_a_time_while_requests_fail(world: World) {
    let seed = seed(20_261_130);
    let mut rng = Rng::new(seed);
    let cells = Arc::clone(&world.cells);
    let faulty = FaultyCells::new(cells, Rng::new(rng.next()), 5);
    let replicas = [world.replica(), world.replica_on(faulty)];
    let over = Arc::new(AtomicBool::new(false));
    let keys: Vec<_> = (0..4)
        .map(|key| world.key(&format!("{seed}-{key}")))
        .collect();
    let held: Vec<Arc<AtomicBool>> = keys.iter().map(|_| Arc::default()).collect();
    let sections = Arc::new(AtomicU64::new(0));
    let each_client = keys
        .iter()
        .zip(&held)
        .flat_map(|key| std::iter::repeat_n(key, 4));
    let clients: Vec<_> = each_client
        .map(|(id, held)| {
            let (id, held, over) = (id.clone(), Arc::clone(held), Arc::clone(&over));
            let (sections, mut rng) = (Arc::clone(&sections), Rng::new(rng.next()));
            let replicas = replicas.clone();
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let replica = &replicas[usize::try_from(rng.below(2)).unwrap()];
                    let Ok(created) = replica.0.create(call(&id, Duration::from_secs(20))).await
                    else {
                        continue;
                    };
                    let lock_ref = created.lock_ref;
                    loop {
                        match replica
                            .0
                            .acquire(&lock_ref, Duration::from_secs(5), false)
                            .await
                        {
                            Ok(acquired) if grant(&acquired.status).is_some() => break,
                            Ok(_) | Err(EngineError::Unavailable(_)) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    assert!(!held.swap(true, Ordering::SeqCst), "two holders of {id}");
                    sleep(rng.ms(0, 5)).await;
                    assert!(held.swap(false, Ordering::SeqCst));
                    sections.fetch_add(1, Ordering::Relaxed);
                    while let Err(EngineError::Unavailable(_)) = replica.release(&lock_ref).await {}
                }
            })
        })
        .collect();
    sleep(SPAN).await;
    over.store(true, Ordering::Relaxed);
    for client in clients {
        timeout(Duration::from_secs(60), client)
            .await
            .unwrap()
            .unwrap();
    }
    let sections = sections.load(Ordering::Relaxed);
    eprintln!("{sections} sections");
    assert!(sections > 20, "{sections} sections");
}
