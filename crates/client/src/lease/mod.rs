//! The third floor: sessions, and lockRefs without one, that are kept alive in the background. A lease ends by the clock, before
//! the server can give its locks to others.

pub(crate) mod kept;
pub(crate) mod renewal;
pub(crate) mod session;
pub(crate) mod state;
