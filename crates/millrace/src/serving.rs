//! Which threads may serve a volume's drives: rules between modes, designs and workers.
//!
//! Pure rules that configuration, `bench` and [`build_volume`] share. The modes themselves are in
//! `millrace_block`, the threads in `millrace_runtime`.
//!
//! [`build_volume`]: crate::build_volume

use millrace_block::{SchedulerKind, Serving, Stack};
use millrace_drives::Words;

/// Whether a volume of so many drives has use for workers.
#[must_use]
pub fn needs_workers(serving: Serving, drives: usize) -> bool {
    matches!(serving, Serving::PerDrive | Serving::Auto) && drives > 1
}

/// The mode of a volume that names none, by the designs of its drives: `auto` if all are `mq` and
/// there are several, else `inline`.
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

/// Whether a drive of this stack may have this scheduler.
///
/// # Errors
/// What to choose instead.
pub fn check_scheduler(scheduler: SchedulerKind, stack: Stack) -> Result<(), String> {
    if scheduler == SchedulerKind::None || stack == Stack::Mq {
        return Ok(());
    }
    let (scheduler, stack) = (scheduler.word(), stack.word());
    Err(format!("scheduler {scheduler} goes with stack mq only, not {stack}: use mq, or none"))
}
