//! Sessions: opened, closed and taken over by compare-and-swap on their rows, kept alive in the memory of one replica,
//! their keeper.
//!
//! The keeper alone judges whether a session lives. Another replica becomes the keeper once the old one is down, or by a hand-over: on
//! request, or before a stop. A home with entries of a session elsewhere passes renewals on to the keeper, and learns
//! of the session's end from the keeper or from the row.

mod announce;
mod announcements;
mod asks;
mod close_row;
mod closed_rows;
mod elsewhere;
mod ends;
mod hand_over;
mod keeper;
mod open;
mod own_rows;
mod registry;
mod renewals;
mod table;
mod take_over;

pub(super) use elsewhere::watch;
pub(super) use hand_over::{give, hand_over_all};
pub(super) use keeper::{ClosedByClient, close, expired};
pub(super) use open::open;
pub(super) use own_rows::OwnRows;
pub(super) use registry::{AttachedKeys, Room, Sessions};
pub(super) use table::{Attached, NoRoom};
pub(super) use take_over::{adopt_row, take_over};
