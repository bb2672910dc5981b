//! Planted bugs by name, for the proof that the explorer finds them.
//!
//! Only the build of `cargo xtask planted` has any: it patches the production lines, see
//! `millrace_machine::plant`. Called by workers.

mod names;

use millrace_machine::plant::{HOOKS, Plant, with};

pub use names::{CACHE_PLANTS, PLANTS};

/// Runs `body` with the bug of this name planted, or with none.
///
/// # Errors
/// If there is no such bug, or the tree is not patched.
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
            Err(format!("--plant {name}: no hooks in this tree; use cargo xtask planted"))
        }
        Some((_, bug)) => Ok(with(bug, body)),
        None => {
            let (names, of_cache) = (PLANTS.join(", "), CACHE_PLANTS.join(", "));
            Err(format!("--plant {name}: one of {names}, or with --cache {of_cache}"))
        }
    }
}
