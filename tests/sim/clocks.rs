//! The clocks of one host, and its ids: all from the simulation's time and seed.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use fermata::clock::{Clock, Ids, Sleep};
use fermata_client::{self as client, Moment};
use uuid::Uuid;

use super::log::Log;
use super::rng::Rng;

/// The wall clock when a simulation begins, in microseconds since 1970.
pub const EPOCH_US: u64 = 1_700_000_000_000_000;

/// What has to wait while a host is stopped. Whoever waits goes on in the order in which it came.
#[derive(Default)]
pub struct Gate {
    closed: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn open(&self) {
        self.closed.store(false, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(Waker::wake);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns once it is open.
    pub fn passed(&self) -> impl Future<Output = ()> + Send + '_ {
        poll_fn(|cx| {
            if !self.is_closed() {
                return Poll::Ready(());
            }
            self.waiting.lock().unwrap().push(cx.waker().clone());
            Poll::Pending
        })
    }
}

/// One host's clocks: a rate of their own, and a wall clock that jumps.
pub struct HostClock {
    log: Arc<Log>,
    /// By how many millionths it is too fast.
    off_ppm: i64,
    /// What it shows at the beginning.
    booted: Duration,
    wall_off_us: AtomicI64,
    wall_off_at_first_us: i64,
    /// For how long it stood still, and since when it does, in the time of the simulation.
    stood_still: Mutex<(Duration, Option<Duration>)>,
    /// Closed while the host is stopped.
    pub awake: Gate,
}

const MILLION: i64 = 1_000_000;

fn scaled(span: Duration, by: i64, of: i64) -> Duration {
    let nanos = span.as_nanos() * by as u128 / of as u128;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl HostClock {
    /// Up to 1 % too fast or too slow.
    pub fn new(log: &Arc<Log>, rng: &mut Rng) -> Arc<HostClock> {
        let off_ppm = rng.below(20_001) as i64 - 10_000;
        let booted = Duration::from_secs(rng.below(1_000_000));
        let wall_off_us = rng.below(4_000_000) as i64 - 2_000_000;
        Arc::new(HostClock {
            log: Arc::clone(log),
            off_ppm,
            booted,
            wall_off_us: AtomicI64::new(wall_off_us),
            wall_off_at_first_us: wall_off_us,
            stood_still: Mutex::default(),
            awake: Gate::default(),
        })
    }

    /// By how many millionths it is too fast.
    pub fn off_ppm(&self) -> i64 {
        self.off_ppm
    }

    /// The wall clock is set to something else.
    pub fn jump(&self, by_us: i64) {
        self.wall_off_us.fetch_add(by_us, Ordering::Relaxed);
    }

    /// The wall clock is set to what it would show without any jump.
    pub fn set_right(&self) {
        let off = self.wall_off_at_first_us;
        self.wall_off_us.store(off, Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        scaled(self.log.now(), MILLION + self.off_ppm, MILLION)
    }

    /// It stands still, as that of a virtual machine which is moved to another host; the wall clock is set right after that.
    pub fn freeze(&self) {
        self.stood_still.lock().unwrap().1 = Some(self.log.now());
    }

    /// It goes on.
    pub fn thaw(&self) {
        let (stood_still, since) = &mut *self.stood_still.lock().unwrap();
        if let Some(since) = since.take() {
            *stood_still += self.log.now() - since;
        }
    }

    /// A moment of this host, which never stood still, in the time of the simulation, rounded down.
    pub fn in_global_time(&self, moment: Moment) -> Duration {
        let shown = Moment::from_zero(self.booted).until(moment);
        scaled(shown, MILLION, MILLION + self.off_ppm)
    }
}

impl Clock for HostClock {
    fn boot(&self) -> Duration {
        let (stood_still, since) = *self.stood_still.lock().unwrap();
        let shown = since.unwrap_or_else(|| self.log.now()) - stood_still;
        self.booted + scaled(shown, MILLION + self.off_ppm, MILLION)
    }

    fn wall_us(&self) -> u64 {
        let shown = EPOCH_US + self.elapsed().as_micros() as u64;
        shown.saturating_add_signed(self.wall_off_us.load(Ordering::Relaxed))
    }

    fn sleep(&self, _span: Duration) -> Sleep {
        unreachable!("a host sleeps by its Sleeper")
    }
}

impl client::Clock for HostClock {
    fn now(&self) -> Moment {
        Moment::from_zero(self.boot())
    }
}

/// The clocks as an engine takes them: a sleep also lasts for as long as the host is stopped.
pub struct Sleeper(pub Arc<HostClock>);

impl Clock for Sleeper {
    fn boot(&self) -> Duration {
        self.0.boot()
    }

    fn wall_us(&self) -> u64 {
        self.0.wall_us()
    }

    fn sleep(&self, span: Duration) -> Sleep {
        let clock = Arc::clone(&self.0);
        let span = scaled(span, MILLION, MILLION + clock.off_ppm);
        Box::pin(async move {
            tokio::time::sleep(span).await;
            clock.awake.passed().await;
        })
    }
}

/// The simulation's own time, by which histories are noted.
pub struct GlobalClock(pub Arc<Log>);

impl Clock for GlobalClock {
    fn boot(&self) -> Duration {
        self.0.now()
    }

    fn wall_us(&self) -> u64 {
        EPOCH_US + self.0.now().as_micros() as u64
    }

    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(span))
    }
}

/// Ids and randomness of one host.
pub struct HostIds(Mutex<Rng>);

impl HostIds {
    pub fn new(rng: Rng) -> HostIds {
        HostIds(Mutex::new(rng))
    }
}

impl Ids for HostIds {
    fn uuid(&self) -> Uuid {
        random_uuid(&mut self.0.lock().unwrap())
    }

    fn below(&self, bound: u64) -> u64 {
        match bound {
            0 => 0,
            bound => self.0.lock().unwrap().below(bound),
        }
    }
}

pub fn random_uuid(rng: &mut Rng) -> Uuid {
    let bits = u128::from(rng.next()) << 64 | u128::from(rng.next());
    uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
}
