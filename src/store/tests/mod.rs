//! Parts that the tests of every store share.

pub(super) mod chance;
