//! What can happen next, and what comes of it.

use fermata::store::{CellChange, CellSwap, Columns, Currency};

use super::call::{Answer, Call, Next, Reply, Request, Run};
use super::cells::{Cell, Changes, Doubt, Life, cells_of, is_in, shown_in};
use super::off::{CONTENDERS, Off};
use super::setup::Setup;
use super::world::{HEARD, Slot, Step, UNHEARD, World};

/// One thing that happens. The first numbers are a client and its call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A client makes its next call.
    Begins(usize),
    /// A read is answered. It shows these writes in flight, and the swap in doubt or not.
    Read(usize, usize, u8, bool),
    /// A read is answered by a node that lags.
    ReadsOne(usize, usize),
    /// A write is done.
    Written(usize, usize),
    /// A write has an unknown outcome.
    WriteUnknown(usize, usize),
    /// A swap is made. The one before, if it is in doubt, takes effect or not.
    Swapped(usize, usize, bool),
    /// As `Swapped`, and its own outcome is unknown.
    SwapUnknown(usize, usize, bool),
    /// A call is cut.
    Cut(usize, bool),
    /// A call goes on unheard.
    Unheard(usize),
    /// A client crashes.
    Crashes(usize, bool),
    /// The TTL of a client passes.
    Expires(usize),
    /// The flags and numbers expire that a client left behind.
    LeftBehindExpire(usize),
    /// The flags of a client expire while it chooses.
    FlagsExpire(usize),
    /// A good part of the TTL of a client passes.
    Ages(usize),
    /// A node misses all from now on.
    Lags,
}

impl World {
    pub fn actions(&self, setup: &Setup, out: &mut Vec<Action>) {
        if self.truth.broken.is_some() {
            return;
        }
        let left = self.left;
        let is_in_doubt = self.cells.is_in_doubt();
        let settles = [true, false].into_iter().take(1 + usize::from(is_in_doubt));
        for (c, client) in self.clients.iter().enumerate() {
            for at in [HEARD, UNHEARD] {
                if let Some(slot) = &client.calls[at] {
                    self.call_actions(setup, c, at, slot, out);
                }
            }
            let lives = |is_fine: &dyn Fn(&Life) -> bool| {
                let cells = self.cells.row.values();
                cells
                    .into_iter()
                    .any(|cell| cell.value.is_some() && is_fine(&cell.life))
            };
            let has_ttl = |life: &Life| matches!(life, Life::Ttl { client, .. } if *client == c);
            let is_new =
                |life: &Life| has_ttl(life) && matches!(life, Life::Ttl { is_old: false, .. });
            let is_flag = |life: &Life| matches!(life, Life::Flag { client } if *client == c);
            if (client.has_crashed || left.expiries > 0) && lives(&has_ttl) {
                out.push(Action::Expires(c));
            }
            let mut own = self.cells.row.iter();
            if own.any(|(column, cell)| self.is_left_behind(c, column, cell)) {
                out.push(Action::LeftBehindExpire(c));
            }
            if left.late > 0 && lives(&is_flag) && self.creates(c).next().is_some() {
                out.push(Action::FlagsExpire(c));
            }
            if client.step == Step::Done {
                continue;
            }
            if left.ages > 0 && lives(&is_new) {
                out.push(Action::Ages(c));
            }
            if client.calls[HEARD].is_none() {
                out.push(Action::Begins(c));
            } else {
                if left.cuts > 0 {
                    out.extend(settles.clone().map(|settle| Action::Cut(c, settle)));
                }
                if left.unheard > 0 && client.calls[UNHEARD].is_none() {
                    out.push(Action::Unheard(c));
                }
            }
            if left.crashes > 0 {
                out.extend(settles.clone().map(|settle| Action::Crashes(c, settle)));
            }
        }
        if left.lags > 0 {
            out.push(Action::Lags);
        }
    }

    fn call_actions(&self, setup: &Setup, c: usize, at: usize, slot: &Slot, out: &mut Vec<Action>) {
        let Next::Asks(request) = &slot.run.next else {
            return;
        };
        match request {
            Request::Read(columns, currency) => {
                let may_show = self.cells.may_show(columns);
                let doubt = match setup.currency(*currency) {
                    Currency::Settled => self.cells.is_in_doubt(),
                    Currency::Acknowledged => self.cells.may_show_doubt(columns),
                };
                for shown in (0..=may_show).filter(|shown| shown & !may_show == 0) {
                    out.push(Action::Read(c, at, shown, false));
                    if doubt {
                        out.push(Action::Read(c, at, shown, true));
                    }
                }
                let reads_one = setup.off.is_some_and(|off| off.reads_one(columns));
                if reads_one && self.cells.lagging.is_some() {
                    out.push(Action::ReadsOne(c, at));
                }
            }
            Request::Write(..) => {
                out.push(Action::Written(c, at));
                if self.left.unknown_writes > 0 {
                    out.push(Action::WriteUnknown(c, at));
                }
            }
            Request::Swap(_) => {
                for settle in [true, false] {
                    if !settle && !self.cells.is_in_doubt() {
                        continue;
                    }
                    out.push(Action::Swapped(c, at, settle));
                    if self.left.unknown_swaps > 0 {
                        out.push(Action::SwapUnknown(c, at, settle));
                    }
                }
            }
        }
    }

    /// Whether this is a flag or an entry of a client that it does not know, or not any more.
    fn is_left_behind(&self, c: usize, column: &str, cell: &Cell) -> bool {
        let client = &self.clients[c];
        let is_of = |id: u64| column.ends_with(&format!("-{:05x}", id % CONTENDERS));
        let is_left = match cell.life {
            Life::Flag { client } if client == c => !self.creates(c).any(|run| run.is_of(column)),
            Life::Ttl { client: of, .. } if of == c => match client.own {
                Some((seq, _)) => column.starts_with("number/") && !is_of(seq),
                None => client.step == Step::Done,
            },
            _ => false,
        };
        is_left && cell.value.is_some()
    }

    /// The creates of a client that run.
    fn creates(&self, c: usize) -> impl Iterator<Item = &Run> {
        let calls = self.clients[c].calls.iter().flatten();
        let runs = calls.map(|slot| &*slot.run);
        runs.filter(|run| run.call == Call::Create)
    }

    pub fn is_fault(&self, action: Action) -> bool {
        match action {
            Action::WriteUnknown(..)
            | Action::SwapUnknown(..)
            | Action::Cut(..)
            | Action::Unheard(_)
            | Action::Crashes(..)
            | Action::FlagsExpire(_)
            | Action::Ages(_)
            | Action::Lags => true,
            Action::Expires(c) => !self.clients[c].has_crashed,
            Action::Begins(_)
            | Action::LeftBehindExpire(_)
            | Action::Read(..)
            | Action::ReadsOne(..)
            | Action::Written(..)
            | Action::Swapped(..) => false,
        }
    }

    pub fn after(&self, setup: &Setup, action: Action) -> World {
        let mut world = self.clone();
        if self.is_fault(action) {
            world.pay(action);
        }
        world.act(setup, action);
        world.cells.tidy();
        world
    }

    fn pay(&mut self, action: Action) {
        let left = &mut self.left;
        let of = match action {
            Action::WriteUnknown(..) => &mut left.unknown_writes,
            Action::SwapUnknown(..) => &mut left.unknown_swaps,
            Action::Cut(..) => &mut left.cuts,
            Action::Unheard(_) => &mut left.unheard,
            Action::Crashes(..) => &mut left.crashes,
            Action::Ages(_) => &mut left.ages,
            Action::Lags => &mut left.lags,
            Action::FlagsExpire(_) => &mut left.late,
            _ => &mut left.expiries,
        };
        *of -= 1;
    }

    fn act(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Begins(c) => self.begin(setup, c),
            Action::Read(c, at, shown, doubt) => {
                let Some(Request::Read(columns, currency)) = self.request(c, at) else {
                    return;
                };
                let currency = setup.currency(currency);
                let mut cells = self.cells.read(&columns, currency, shown, doubt);
                if let Some(off) = setup.off {
                    off.read(&mut cells, c);
                }
                if self.shows_own(c, &columns) {
                    self.is_alive(c, at);
                }
                self.replied(setup, c, at, Reply::Cells(cells));
            }
            Action::ReadsOne(c, at) => {
                let request = self.request(c, at);
                if let (Some(Request::Read(columns, _)), Some(row)) = (request, &self.cells.lagging)
                {
                    let cells = shown_in(row, &columns);
                    self.replied(setup, c, at, Reply::Cells(cells));
                }
            }
            Action::Written(c, at) => {
                let Some(changes) = self.changes(setup, c, at) else {
                    return;
                };
                let is_flag = |column: &str| column.starts_with("choosing/");
                let flags_up = changes.iter().any(|(column, _)| {
                    let old = self.cells.row.get(column);
                    is_flag(column) && old.is_some_and(|old| old.value.is_some())
                });
                if setup.off == Some(Off::OnePartition) && flags_up && changes.len() > 1 {
                    let mut changes = changes;
                    changes.retain(|(column, _)| is_flag(column));
                    self.cells.land(changes);
                    return;
                }
                self.cells.land(changes);
                self.replied(setup, c, at, Reply::Done);
            }
            Action::WriteUnknown(c, at) => {
                self.flies(setup, c, at, true);
                self.replied(setup, c, at, Reply::Unknown);
            }
            Action::Swapped(c, at, settle) => {
                let Some(Request::Swap(swap)) = self.request(c, at) else {
                    return;
                };
                self.cells.settle(settle);
                let reply = match self.swapped(setup, c, &swap) {
                    true => Reply::Done,
                    false => Reply::Conflict,
                };
                if reply == Reply::Done {
                    self.is_alive(c, at);
                }
                self.replied(setup, c, at, reply);
            }
            Action::SwapUnknown(c, at, settle) => {
                self.flies(setup, c, at, settle);
                self.replied(setup, c, at, Reply::Unknown);
            }
            Action::Cut(c, settle) => {
                self.flies(setup, c, HEARD, settle);
                self.clients[c].calls[HEARD] = None;
                self.repeats(setup, c);
            }
            Action::Unheard(c) => {
                let client = &mut self.clients[c];
                client.calls[UNHEARD] = client.calls[HEARD].take();
                self.repeats(setup, c);
            }
            Action::Crashes(c, settle) => {
                self.flies(setup, c, HEARD, settle);
                self.clients[c].ends();
                self.clients[c].has_crashed = true;
            }
            Action::Expires(c) => self.expires(c),
            Action::LeftBehindExpire(c) => {
                let mut row = std::mem::take(&mut self.cells.row);
                for (column, cell) in &mut row {
                    if self.is_left_behind(c, column, cell) {
                        cell.value = None;
                    }
                }
                self.cells.row = row;
            }
            Action::FlagsExpire(c) => {
                self.cells.each(|cell| {
                    if cell.life == (Life::Flag { client: c }) {
                        cell.value = None;
                    }
                });
                let calls = self.clients[c].calls.iter_mut().flatten();
                for slot in calls.filter(|slot| slot.run.call == Call::Create) {
                    slot.is_late = setup.off != Some(Off::LateChoice);
                }
            }
            Action::Ages(c) => self.cells.each(|cell| {
                if let Life::Ttl { client, is_old } = &mut cell.life {
                    *is_old |= *client == c;
                }
            }),
            Action::Lags => self.cells.lagging = Some(self.cells.row.clone()),
        }
    }

    fn expires(&mut self, c: usize) {
        self.cells.each(|cell| {
            if matches!(cell.life, Life::Ttl { client, .. } if client == c) {
                cell.value = None;
            }
        });
        let client = &mut self.clients[c];
        client.is_sure = false;
        client.has_expired = true;
        for slot in client.calls.iter_mut().flatten() {
            slot.is_stale = true;
        }
    }

    /// A client makes its call again, at another replica.
    fn repeats(&mut self, setup: &Setup, c: usize) {
        let client = &mut self.clients[c];
        client.repeats += 1;
        if let Step::Op(at) = client.step
            && client.value > 0
            && setup.reads_in_doubt
        {
            client.step = Step::Check(at);
        }
        self.begin(setup, c);
    }

    /// What happens, for people.
    pub fn told(&self, action: Action) -> String {
        let (c, at) = match action {
            Action::Read(c, at, ..)
            | Action::ReadsOne(c, at)
            | Action::Written(c, at)
            | Action::WriteUnknown(c, at)
            | Action::Swapped(c, at, _)
            | Action::SwapUnknown(c, at, _) => (c, at),
            Action::Cut(c, _) | Action::Crashes(c, _) => (c, HEARD),
            _ => return format!("{action:?}"),
        };
        let of = |changes: &[CellChange]| {
            let deletes = |change: &CellChange| matches!(change, CellChange::Delete { .. });
            let sign = |change| if deletes(change) { "-" } else { "+" };
            let columns = changes
                .iter()
                .map(|c| format!(" {}{}", sign(c), c.column()));
            columns.collect::<String>()
        };
        let call = self.clients[c].calls[at].as_ref().map(|slot| slot.run.call);
        let what = match self.request(c, at) {
            Some(Request::Read(columns, currency)) => format!("{currency:?} {columns:?}"),
            Some(Request::Write(changes, timestamp)) => format!("at {timestamp}{}", of(&changes)),
            Some(Request::Swap(swap)) => format!("guard{}", of(&swap.others)),
            None => String::new(),
        };
        format!("{action:?} of {call:?}: {what}")
    }

    fn request(&self, c: usize, at: usize) -> Option<Request> {
        match &self.clients[c].calls[at].as_ref()?.run.next {
            Next::Asks(request) => Some(request.clone()),
            Next::Ends(_) => None,
        }
    }

    /// The changes that a call writes now.
    fn changes(&self, setup: &Setup, c: usize, at: usize) -> Option<Changes> {
        let Request::Write(mut changes, mut timestamp) = self.request(c, at)? else {
            return None;
        };
        if let Some(off) = setup.off {
            off.write(&mut changes, &mut timestamp, c);
        }
        Some(cells_of(&changes, timestamp, c))
    }

    /// What a call writes or swaps now may take effect later.
    fn flies(&mut self, setup: &Setup, c: usize, at: usize, settle: bool) {
        if let Some(changes) = self.changes(setup, c, at) {
            self.cells.writes.push(changes);
        }
        if let Some(Request::Swap(swap)) = self.request(c, at) {
            self.cells.settle(settle);
            if self.cells.fits(&swap) {
                self.cells.doubt = Some(Doubt {
                    changes: changes_of(&swap, c),
                    is_decided: false,
                });
            }
        }
    }

    /// Makes a swap. Answers whether it takes effect.
    fn swapped(&mut self, setup: &Setup, c: usize, swap: &CellSwap) -> bool {
        let blind = setup
            .off
            .and_then(|off| off.swaps_blindly(swap, &self.cells, c));
        let mut changes = changes_of(swap, c);
        if blind == Some(true) {
            changes.remove(0);
        }
        let fits = blind.is_some() || self.cells.fits(swap);
        if fits {
            self.cells.land_swap(changes);
        }
        fits
    }

    /// Whether a read of these shows the entry of a client.
    fn shows_own(&self, c: usize, columns: &Columns) -> bool {
        let mut shown = self
            .cells
            .row
            .iter()
            .filter(|(column, _)| is_in(columns, column));
        shown.any(|(_, cell)| {
            let is_own = matches!(cell.life, Life::Ttl { client, .. } if client == c);
            is_own && cell.value.is_some()
        })
    }

    fn is_alive(&mut self, c: usize, at: usize) {
        if let Some(slot) = &mut self.clients[c].calls[at] {
            slot.is_stale = false;
        }
    }

    /// A call is answered by the store.
    fn replied(&mut self, setup: &Setup, c: usize, at: usize, reply: Reply) {
        let Some(slot) = &mut self.clients[c].calls[at] else {
            return;
        };
        slot.run = slot.run.replied(reply, std::mem::take(&mut slot.is_late));
        let Next::Ends(answer) = &slot.run.next else {
            return;
        };
        let (call, answer, is_stale): (Call, Answer, bool) =
            (slot.run.call, answer.clone(), slot.is_stale);
        self.clients[c].calls[at] = None;
        if at == HEARD {
            self.answered(setup, c, call, &answer, is_stale);
        }
    }
}

fn changes_of(swap: &CellSwap, client: usize) -> Changes {
    let mut changes = vec![swap.first.clone()];
    changes.extend(swap.others.iter().cloned());
    cells_of(&changes, 0, client)
}

impl Setup {
    fn currency(&self, asked: Currency) -> Currency {
        match self.off {
            Some(Off::Settled) => Currency::Acknowledged,
            _ => asked,
        }
    }
}
