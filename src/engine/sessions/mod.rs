//! Sessions: opened, closed and taken over by compare-and-swap on their rows, kept alive in the memory of one replica,
//! their keeper.
//!
//! Whoever keeps a session judges whether it lives. Another replica becomes its keeper once that one
//! is down, or when it hands the session over: because it was asked for, or before it stops. Homes
//! of keys whose entries live by a session elsewhere pass renewals on to its keeper, and learn from it, or from the row,
//! that it ended.

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
