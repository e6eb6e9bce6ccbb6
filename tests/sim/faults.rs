//! What goes wrong with hosts, the network and the weather of the store, as the seed says; and the end of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::rng::Rng;
use super::store::{Ambush, Weather};
use super::world::World;

/// Mostly short; some outlast every TTL.
fn span(rng: &mut Rng) -> Duration {
    match rng.below(4) {
        0 => rng.ms(4_000, 15_000),
        1 => rng.ms(1_000, 5_000),
        _ => rng.ms(50, 1_500),
    }
}

/// Something goes wrong, again and again, for so long.
pub async fn trouble(world: &Arc<World>, mut rng: Rng, span: Duration) {
    let end = world.log.now() + span;
    // How often differs from seed to seed.
    let often = [300, 1_000, 3_000][rng.below(3) as usize];
    // And how many changes of keys nobody hears of.
    let percent = [0, 0, 3, 20][rng.below(4) as usize];
    for replica in 0..world.replicas.len() {
        world.change_weather(replica, |weather| weather.percent_of_swaps = percent);
    }
    while world.log.now() < end {
        let pause = rng.ms(10, 2 * often);
        sleep(pause).await;
        one(world, &mut rng);
    }
}

/// Later, unless all is well by then.
fn later(world: &Arc<World>, after: Duration, what: impl FnOnce(&Arc<World>) + Send + 'static) {
    let world = Arc::clone(world);
    tokio::task::spawn_local(async move {
        sleep(after).await;
        if !world.is_healed() {
            what(&world);
        }
    });
}

fn one(world: &Arc<World>, rng: &mut Rng) {
    let replicas = world.replicas.len() as u64;
    let clients = world.clients.len() as u64;
    let replica = rng.below(replicas) as usize;
    let client = rng.below(clients) as usize;
    let span = span(rng);
    match rng.below(30) {
        0..3 => between(world, rng, span),
        3 => cut_off(world, replica, span),
        4 => mute(world, replica, span),
        5..7 => stop_replica(world, replica, span),
        7 => stop_host(world, world.clients[client].host, span),
        8..10 => {
            let other = rng.below(replicas + clients) as usize;
            world.log.fault(
                "network",
                format_args!("{replica} and {other} lose their connections"),
            );
            world.net.reset(replica, other);
        }
        10 | 29 => {
            world.replicas[replica].kill(world, rng.below(2) == 0);
            later(world, span, move |world| {
                world.replicas[replica].start(world)
            });
        }
        11 | 12 => {
            world.replicas[replica].stop(world);
            // Mostly it has stopped by then; else it is killed.
            let given = rng.ms(500, 12_000);
            later(world, given, move |world| {
                world.replicas[replica].kill(world, true);
                world.replicas[replica].start(world);
            });
        }
        13 => {
            world.clients[client].kill(world, rng.below(2) == 0);
            later(world, span, move |world| world.clients[client].start(world));
        }
        14 | 15 => wall_jump(world, replica, rng, span),
        16..18 => storm(world, rng, span),
        18 => {
            let key = world.key(rng);
            let world = Arc::clone(world);
            tokio::task::spawn_local(async move { world.force(&key).await });
        }
        19 => sleepy_store(world, rng, span),
        20 => list_slowly(world, replica, span),
        21 | 22 => move_guest(world, replica),
        _ => ambush(world, replica, rng, span),
    }
}

/// Nothing goes between two hosts, in one direction or in both.
fn between(world: &Arc<World>, rng: &mut Rng, span: Duration) {
    let hosts = (world.replicas.len() + world.clients.len()) as u64;
    let a = rng.below(world.replicas.len() as u64) as usize;
    let b = match rng.below(2) {
        0 => rng.below(hosts) as usize,
        _ => rng.below(world.replicas.len() as u64) as usize,
    };
    if a == b {
        return;
    }
    let ways: &[(usize, usize)] = match rng.below(3) {
        0 => &[(a, b)],
        1 => &[(b, a)],
        _ => &[(a, b), (b, a)],
    };
    for (from, to) in ways.iter().copied() {
        world.log.fault(
            "network",
            format_args!("nothing from {from} to {to} for {span:?}"),
        );
        world.net.block(from, to);
        later(world, span, move |world| {
            world
                .log
                .note("network", format_args!("from {from} to {to} again"));
            world.net.unblock(from, to);
        });
    }
}

/// The weather of a replica's way to the store is another one for so long.
fn weather(
    world: &Arc<World>,
    replica: usize,
    span: Duration,
    what: &str,
    change: fn(&mut Weather, bool),
) {
    let name = &world.replicas[replica].name;
    world.log.fault(name, format_args!("{what} for {span:?}"));
    world.change_weather(replica, |weather| change(weather, true));
    later(world, span, move |world| {
        world.change_weather(replica, |weather| change(weather, false));
    });
}

fn cut_off(world: &Arc<World>, replica: usize, span: Duration) {
    let what = "is cut off from the store";
    weather(world, replica, span, what, |weather, on| {
        weather.is_cut = on
    });
}

/// A replica's heartbeats do not get through.
fn mute(world: &Arc<World>, replica: usize, span: Duration) {
    let what = "sends no heartbeat";
    weather(world, replica, span * 2, what, |weather, on| {
        weather.is_mute = on
    });
}

/// What a replica lists is old when it learns of it.
fn list_slowly(world: &Arc<World>, replica: usize, span: Duration) {
    let what = "its lists are slow";
    weather(world, replica, span, what, |weather, on| {
        weather.lists_slowly = on
    });
}

/// As SIGSTOP: it learns nothing, says nothing, and its sleeps do not end.
fn stop_replica(world: &Arc<World>, replica: usize, span: Duration) {
    let clock = &world.replicas[replica].clock;
    if clock.awake.is_closed() {
        return;
    }
    clock.awake.close();
    stop_host(world, replica, span);
    later(world, span, move |world| {
        world.replicas[replica].clock.awake.open()
    });
}

/// A replica's virtual machine is moved: all of it stands still for a moment, its clock too. What may do so unnoticed is what
/// the tenth of the replica TTL is for, beside the rates of clocks; more is caught by the next round, which the tests of
/// membership show.
fn move_guest(world: &Arc<World>, replica: usize) {
    let host = &world.replicas[replica];
    if host.clock.awake.is_closed() {
        return;
    }
    let Some(span) = host.move_guest(world.log.now()) else {
        return;
    };
    host.clock.freeze();
    stop_replica(world, replica, span);
    later(world, span, move |world| {
        world.replicas[replica].clock.thaw()
    });
}

fn stop_host(world: &Arc<World>, host: usize, span: Duration) {
    world.log.fault(
        "world",
        format_args!("host {host} stands still for {span:?}"),
    );
    world.net.stop(host);
    later(world, span, move |world| {
        world.log.note("world", format_args!("host {host} goes on"));
        world.net.go_on(host);
    });
}

/// A replica goes, or loses the store, in the middle of its next write or swap.
fn ambush(world: &Arc<World>, replica: usize, rng: &mut Rng, span: Duration) {
    let Some(link) = world.replicas[replica].link() else {
        return;
    };
    let kind = match rng.below(8) {
        0..2 => Ambush::Swap,
        2 => Ambush::ReplicaState,
        3..5 => Ambush::Home,
        _ => Ambush::Write,
    };
    let crashes = rng.below(5);
    let met = link.ambush(kind);
    let world = Arc::clone(world);
    tokio::task::spawn_local(async move {
        if met.await.is_err() || world.is_healed() {
            return;
        }
        let host = &world.replicas[replica];
        world.log.fault(
            &host.name,
            format_args!("is met in the middle of a {kind:?}"),
        );
        match crashes {
            0 => cut_off(&world, replica, span),
            1 => stop_replica(&world, replica, span),
            2 => {}
            how => {
                host.kill(&world, how == 3);
                later(&world, span, move |world| {
                    world.replicas[replica].start(world)
                });
            }
        }
    });
}

/// Seconds to hours, forward or back.
/// A wall clock that is far off makes its replica grant nothing, so it is set right again.
fn wall_jump(world: &Arc<World>, replica: usize, rng: &mut Rng, span: Duration) {
    let seconds = [5, 90, 7_200, 20_000][rng.below(4) as usize];
    let by_us = rng.below(2 * seconds * 1_000_000) as i64 - seconds as i64 * 1_000_000;
    let name = &world.replicas[replica].name;
    world.log.fault(
        name,
        format_args!("its wall clock jumps by {} s", by_us / 1_000_000),
    );
    world.replicas[replica].clock.jump(by_us);
    later(world, span, move |world| {
        let replica = &world.replicas[replica];
        world.log.note(&replica.name, "its wall clock is set right");
        replica.clock.set_right();
    });
}

/// Many operations on the store go wrong, of one replica or of all.
fn storm(world: &Arc<World>, rng: &mut Rng, span: Duration) {
    let percent = [5, 20, 50][rng.below(3) as usize];
    let only = match rng.below(2) {
        0 => None,
        _ => Some(rng.below(world.replicas.len() as u64) as usize),
    };
    let span = span.min(Duration::from_secs(6));
    world.log.fault(
        "store",
        format_args!("{percent} % go wrong for {span:?}, of {only:?}"),
    );
    let hosts: Vec<usize> =
        only.map_or_else(|| (0..world.replicas.len()).collect(), |one| vec![one]);
    for host in hosts {
        world.change_weather(host, |weather| weather.percent = percent);
        later(world, span, move |world| {
            world.change_weather(host, |weather| weather.percent = 0);
        });
    }
}

/// Few go wrong, for long.
fn sleepy_store(world: &Arc<World>, rng: &mut Rng, span: Duration) {
    let percent = 1 + rng.below(4);
    world.log.fault(
        "store",
        format_args!("{percent} % go wrong for {:?}", span * 3),
    );
    for host in 0..world.replicas.len() {
        world.change_weather(host, |weather| weather.percent = percent);
        later(world, span * 3, move |world| {
            world.change_weather(host, |weather| weather.percent = 0);
        });
    }
}

/// Everything is mended, and everybody runs.
pub fn heal(world: &Arc<World>) {
    let hosts = world.replicas.len() + world.clients.len();
    for from in 0..hosts {
        world.net.go_on(from);
        for to in 0..hosts {
            world.net.unblock(from, to);
        }
    }
    for (host, replica) in world.replicas.iter().enumerate() {
        replica.clock.awake.open();
        replica.clock.thaw();
        replica.clock.set_right();
        world.change_weather(host, |weather| *weather = Default::default());
        replica.revive(world);
    }
    for client in &world.clients {
        client.start(world);
    }
}
