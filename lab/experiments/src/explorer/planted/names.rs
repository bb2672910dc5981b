//! Names of the seeded bugs for the option `--plant`: the variants of `Plant` in kebab case.
//!
//! The file is compiled into the explorer and into `cargo xtask planted`, so that both use the same
//! list.

/// Seeded bugs that the explorer must find.
pub const PLANTS: [&str; 17] = [
    "skipped-wake-up",
    "leaked-tag",
    "double-completion",
    "dropped-member-flush",
    "flush-joined-too-late",
    "freeze-misses-one",
    "merge-across-chunk",
    "sq-unlock-too-early",
    "tag-unlooked",
    "busy-forgotten",
    "parent-free",
    "due-forgotten",
    "depth-leak",
    "slope-ignored",
    "lift-forgets",
    "renew-forgets",
    "drain-forgets",
];

/// Seeded bugs that the explorer must find with `--cache`.
pub const CACHE_PLANTS: [&str; 5] = [
    "frame-reused",
    "flush-misses-writing",
    "discard-drops-early",
    "stuck-unnoticed",
    "fua-trusted",
];
