//! Checks that a serving mode and a scheduler fit the block layer design (`Stack`) of a drive.
//!
//! A serving mode decides the threads that run a volume's drives. `millrace_block` defines the
//! modes, and `millrace_runtime` has the threads.

use millrace_block::baseline::Stack;
use millrace_block::{Error, ErrorKind, SchedulerKind, Serving};
use millrace_drives::Words;

/// Returns true if a volume of `drives` drives uses worker threads in this serving mode.
#[must_use]
pub fn needs_workers(serving: Serving, drives: usize) -> bool {
    matches!(serving, Serving::PerDrive | Serving::Auto) && drives > 1
}

/// Returns the default serving mode of a volume whose drives use these stacks (block layer
/// designs): `auto` for several drives that all use `mq`, else `inline`.
#[must_use]
pub fn default_serving(stacks: &[Stack]) -> Serving {
    let are_mq = stacks.iter().all(|stack| *stack == Stack::Mq);
    if are_mq && stacks.len() > 1 { Serving::Auto } else { Serving::Inline }
}

/// Checks that a serving mode fits a drive's stack (block layer design). All modes except `inline`
/// need the stack `mq`: other stacks have no plug, and no queues that another thread may run.
///
/// # Errors
/// `InvalidSetting`, with the modes to choose instead.
pub fn check_serving(serving: Serving, stack: Stack) -> Result<(), Error> {
    if serving == Serving::Inline || stack == Stack::Mq {
        return Ok(());
    }
    let (serving, stack) = (serving.name(), stack.word());
    let text = format!(
        "serving = {serving} requires stack = mq, not {stack}; set stack = mq, or serving = inline"
    );
    Err(Error::new(ErrorKind::InvalidSetting, text))
}

/// Checks that a drive with this stack may have this scheduler. All schedulers except `none` need
/// the stack `mq`.
pub(crate) fn check_scheduler(scheduler: SchedulerKind, stack: Stack) -> Result<(), Error> {
    if scheduler == SchedulerKind::None || stack == Stack::Mq {
        return Ok(());
    }
    let (scheduler, stack) = (scheduler.word(), stack.word());
    let text = format!(
        "scheduler = {scheduler} requires stack = mq, not {stack}; set stack = mq, or \
         scheduler = none"
    );
    Err(Error::new(ErrorKind::InvalidSetting, text))
}
