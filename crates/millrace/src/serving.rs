//! Who may serve a volume's drives: what goes with which design, and who has use for workers.
//!
//! Pure rules, of which the front ends (configuration, `bench`, [`build_volume`]) each ask the
//! same. The modes themselves are in `millrace_block`, the threads in `millrace_drives`.
//!
//! [`build_volume`]: crate::build_volume

use millrace_block::{Serving, Stack};
use millrace_drives::Words;

/// Whether a volume of so many drives has use for workers.
#[must_use]
pub fn needs_workers(serving: Serving, drives: usize) -> bool {
    matches!(serving, Serving::PerDrive | Serving::Auto) && drives > 1
}

/// Who serves a volume that does not say, by the designs of its drives: whoever turns out faster
/// where that is a question at all.
#[must_use]
pub fn default_serving(stacks: &[Stack]) -> Serving {
    match stacks {
        [Stack::Mq, .., Stack::Mq] if stacks.iter().all(|stack| *stack == Stack::Mq) => {
            Serving::Auto
        }
        _ => Serving::Inline,
    }
}

/// Whether a mode goes with a design: only `mq` has queues that somebody else may serve, and a
/// plug.
///
/// # Errors
/// What to choose instead.
pub fn check_serving(serving: Serving, stack: Stack) -> Result<(), String> {
    if serving == Serving::Inline || stack == Stack::Mq {
        return Ok(());
    }
    let (serving, stack) = (serving.name(), stack.word());
    Err(format!("serving {serving} goes with stack mq only, not {stack}: use mq, or inline"))
}
