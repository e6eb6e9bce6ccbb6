//! What this binary was built from.

/// The version of Fermata.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit in 8 digits, with `-dirty` after changes that are in no commit. `unknown` in debug builds, and in builds from files
/// that name no commit.
pub const COMMIT: &str = env!("FERMATA_BUILT_COMMIT");

/// Both for people, with the day of the commit: `0.1.0 (a7bfe6f2 2026-11-29)`; the version alone if the commit is unknown.
pub const DESCRIBED: &str = env!("FERMATA_BUILT_VERSION");
