//! Rules for serving modes: which threads may run the queues of a volume's drives.
//!
//! Pure functions that the configuration, `bench` and [`build_volume`] share. The modes are defined
//! in `millrace_block`, the threads in `millrace_runtime`.
//!
//! [`build_volume`]: crate::build_volume

use millrace_block::{SchedulerKind, Serving, Stack};
use millrace_drives::Words;

/// Returns true if a volume of `drives` drives uses worker threads in this mode.
#[must_use]
pub fn needs_workers(serving: Serving, drives: usize) -> bool {
    matches!(serving, Serving::PerDrive | Serving::Auto) && drives > 1
}

/// Returns the default mode for drives with these stacks: `auto` for several drives that are all
/// `mq`, else `inline`.
#[must_use]
pub fn default_serving(stacks: &[Stack]) -> Serving {
    match stacks {
        [Stack::Mq, .., Stack::Mq] if stacks.iter().all(|stack| *stack == Stack::Mq) => {
            Serving::Auto
        }
        _ => Serving::Inline,
    }
}

/// Checks that a mode fits a stack. Only `mq` has a plug, and queues that another thread may run.
///
/// # Errors
/// Returns a text with the modes to choose instead.
pub fn check_serving(serving: Serving, stack: Stack) -> Result<(), String> {
    if serving == Serving::Inline || stack == Stack::Mq {
        return Ok(());
    }
    let (serving, stack) = (serving.name(), stack.word());
    Err(format!("serving {serving} needs stack mq, not {stack}: use mq, or inline"))
}

/// Checks that a drive with this stack may have this scheduler.
///
/// # Errors
/// Returns a text with the stack or scheduler to choose instead.
pub fn check_scheduler(scheduler: SchedulerKind, stack: Stack) -> Result<(), String> {
    if scheduler == SchedulerKind::None || stack == Stack::Mq {
        return Ok(());
    }
    let (scheduler, stack) = (scheduler.word(), stack.word());
    Err(format!("scheduler {scheduler} needs stack mq, not {stack}: use mq, or none"))
}
