//! The third layer: leases, kept alive in the background. A lease is a session, or a lockRef without a session. It ends by the
//! clock, before the server can give its locks to others.

pub(crate) mod kept;
pub(crate) mod renewal;
pub(crate) mod session;
pub(crate) mod state;
