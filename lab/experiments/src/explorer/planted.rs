//! Seeded bugs by name, which test that the explorer finds bugs.
//!
//! Only builds by `cargo xtask planted` contain the bugs, because this command patches the
//! production sources (see `millrace_checker::plant`). Worker processes call this file.

mod names;

use millrace_checker::plant::{HOOKS, Plant, with};

pub use names::{CACHE_PLANTS, PLANTS};

/// Runs `body` with the named bug enabled, or without any bug for None.
///
/// # Errors
/// If there is no bug of this name, or the sources are not patched.
pub fn with_bug<R>(name: Option<&str>, body: impl FnOnce() -> R) -> Result<R, String> {
    let bugs = [
        Plant::SkippedWakeUp,
        Plant::LeakedTag,
        Plant::DoubleCompletion,
        Plant::DroppedMemberFlush,
        Plant::FlushJoinedTooLate,
        Plant::FreezeMissesOne,
        Plant::MergeAcrossChunk,
        Plant::SqUnlockTooEarly,
        Plant::TagUnlooked,
        Plant::BusyForgotten,
        Plant::ParentFree,
        Plant::DueForgotten,
        Plant::DepthLeak,
        Plant::SlopeIgnored,
        Plant::LiftForgets,
        Plant::RenewForgets,
        Plant::DrainForgets,
        Plant::FrameReused,
        Plant::FlushMissesWriting,
        Plant::DiscardDropsEarly,
        Plant::StuckUnnoticed,
        Plant::FuaTrusted,
    ];
    let Some(name) = name else { return Ok(body()) };
    let found = PLANTS.iter().chain(&CACHE_PLANTS).zip(bugs).find(|(known, _)| **known == name);
    match found {
        Some(_) if !HOOKS => {
            Err(format!("--plant {name}: this build has no seeded bugs; use cargo xtask planted"))
        }
        Some((_, bug)) => Ok(with(bug, body)),
        None => {
            let (names, of_cache) = (PLANTS.join(", "), CACHE_PLANTS.join(", "));
            Err(format!(
                "--plant {name}: unknown bug; use one of {names}, or with --cache one of {of_cache}"
            ))
        }
    }
}
