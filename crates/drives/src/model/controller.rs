//! `ModelController`: a number of tags and a link that several simulated drives share.
//!
//! The controller stands for an AHCI controller, an SCU (Intel's SAS controller), or an HBA as in
//! the test bed of \[FALCON\]. Tags are shared fairly: while a drive with less than an equal share
//! waits, drives with more get no further tags. A spec refers to a controller by name, and a
//! controller exists as long as a drive uses it. The mutexes here come last in the lock order and
//! are never held while other code is called.

use millrace_machine::lock_unpoisoned;
use std::sync::{Arc, Mutex, Weak};

use super::link::{BookedTransfer, DuplexLink, ModelIo};

/// A controller that several simulated drives are attached to.
#[derive(Debug)]
pub struct ModelController {
    name: String,
    pub(crate) limits: ControllerLimits,
    command_free_ns: Mutex<u64>,
    ports: Mutex<PortTable>,
    link: Mutex<DuplexLink>,
}

/// Limits of a controller; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ControllerLimits {
    pub(crate) tags: u32,
    /// Bandwidth of the link in each direction.
    pub(crate) bytes_per_s: u64,
    pub(crate) command_ns: u64,
}

#[derive(Debug, Default)]
struct PortTable {
    in_flight: u32,
    list: Vec<PortState>,
}

#[derive(Debug, Default, Clone, Copy)]
struct PortState {
    taken: bool,
    in_flight: u32,
    waiting: bool,
}

static NAMED: Mutex<Vec<Weak<ModelController>>> = Mutex::new(Vec::new());

impl ModelController {
    /// Creates a controller with `tags` tags for all its drives, and a link of `bytes_per_s` bytes
    /// a second in each direction; 0 means no limit.
    #[must_use]
    pub fn new(name: &str, tags: u32, bytes_per_s: u64) -> Arc<ModelController> {
        ModelController::with_limits(name, ControllerLimits { tags, bytes_per_s, command_ns: 0 })
    }

    fn with_limits(name: &str, limits: ControllerLimits) -> Arc<ModelController> {
        Arc::new(ModelController {
            name: name.into(),
            limits,
            command_free_ns: Mutex::new(0),
            ports: Mutex::default(),
            link: Mutex::new(DuplexLink::new(limits.bytes_per_s, limits.bytes_per_s)),
        })
    }

    /// Returns the controller `name`, which is created if there is none. `set` sets the limits that
    /// the spec gives. A controller that exists with other limits is returned as the error.
    pub(crate) fn named(
        name: &str,
        set: impl FnOnce(&mut ControllerLimits),
    ) -> Result<Arc<Self>, Arc<Self>> {
        let mut named = lock_unpoisoned(&NAMED);
        named.retain(|controller| controller.strong_count() > 0);
        let found = named.iter().filter_map(Weak::upgrade).find(|c| c.name == name);
        let mut limits = found.as_ref().map(|found| found.limits).unwrap_or_default();
        set(&mut limits);
        if let Some(found) = found {
            return if limits == found.limits { Ok(found) } else { Err(found) };
        }
        let made = ModelController::with_limits(name, limits);
        named.push(Arc::downgrade(&made));
        Ok(made)
    }

    pub(crate) fn book_command(&self, now_ns: u64) -> u64 {
        if self.limits.command_ns == 0 {
            return now_ns;
        }
        let mut free_ns = lock_unpoisoned(&self.command_free_ns);
        *free_ns = now_ns.max(*free_ns) + self.limits.command_ns;
        *free_ns
    }

    pub(crate) fn book_transfer(&self, now_ns: u64, io: ModelIo) -> BookedTransfer {
        lock_unpoisoned(&self.link).book(now_ns, io)
    }
}

#[derive(Debug)]
pub(crate) struct ControllerPort {
    pub(crate) controller: Arc<ModelController>,
    index: usize,
}

impl ControllerPort {
    pub(crate) fn new(controller: Arc<ModelController>) -> ControllerPort {
        let mut ports = lock_unpoisoned(&controller.ports);
        let free = ports.list.iter().position(|port| !port.taken);
        let index = free.unwrap_or_else(|| {
            ports.list.push(PortState::default());
            ports.list.len() - 1
        });
        ports.list[index].taken = true;
        drop(ports);
        ControllerPort { controller, index }
    }

    /// Takes a tag. Returns false if none is free, or if a drive with fewer tags waits for one.
    pub(crate) fn take(&self) -> bool {
        let tags = self.controller.limits.tags;
        if tags == 0 {
            return true;
        }
        let mut ports = lock_unpoisoned(&self.controller.ports);
        let busy = ports.list.iter().filter(|port| port.in_flight > 0 || port.waiting).count();
        let share = (tags / busy.max(1) as u32).max(1);
        // `others_wait` may be true only because the calling drive itself waits with fewer tags
        // than its share. Then `own` is below `share`, so the drive gets a tag if one is free.
        let others_wait = ports.list.iter().any(|port| port.waiting && port.in_flight < share);
        let own = ports.list[self.index].in_flight;
        let granted = ports.in_flight < tags && !(others_wait && own >= share);
        ports.list[self.index].waiting = !granted;
        if granted {
            ports.in_flight += 1;
            ports.list[self.index].in_flight += 1;
        }
        granted
    }

    pub(crate) fn give(&self, count: u32) {
        if self.controller.limits.tags > 0 {
            let mut ports = lock_unpoisoned(&self.controller.ports);
            ports.in_flight -= count;
            ports.list[self.index].in_flight -= count;
        }
    }
}

impl Drop for ControllerPort {
    fn drop(&mut self) {
        let mut ports = lock_unpoisoned(&self.controller.ports);
        let left = std::mem::take(&mut ports.list[self.index]);
        ports.in_flight -= left.in_flight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_share_the_tags_of_their_controller() {
        let controller = ModelController::new("c", 3, 0);
        let (a, b) = (
            ControllerPort::new(Arc::clone(&controller)),
            ControllerPort::new(Arc::clone(&controller)),
        );
        assert!(a.take() && a.take() && a.take());
        assert!(!a.take() && !b.take());
        a.give(1);
        assert!(b.take());
    }

    #[test]
    fn drive_that_waits_gets_its_share_before_one_that_has_more() {
        let controller = ModelController::new("c", 4, 0);
        let (a, b) = (
            ControllerPort::new(Arc::clone(&controller)),
            ControllerPort::new(Arc::clone(&controller)),
        );
        assert!((0..4).all(|_| a.take()));
        assert!(!b.take());
        a.give(1);
        assert!(!a.take(), "three of four, and the other waits");
        assert!(b.take());
        a.give(1);
        assert!(a.take(), "nobody waits any more");
    }

    #[test]
    fn commands_of_all_drives_take_turns_at_the_controller() {
        let set = |limits: &mut ControllerLimits| limits.command_ns = 150;
        let controller = ModelController::named("of-turns", set).unwrap();
        assert_eq!([0, 0, 1_000].map(|now_ns| controller.book_command(now_ns)), [150, 300, 1_150]);
        assert_eq!(ModelController::new("free", 0, 0).book_command(7), 7);
    }

    #[test]
    fn drive_that_is_gone_leaves_its_tags_and_its_wait() {
        let controller = ModelController::new("c", 2, 0);
        let (a, b) = (
            ControllerPort::new(Arc::clone(&controller)),
            ControllerPort::new(Arc::clone(&controller)),
        );
        assert!(a.take() && a.take() && !b.take());
        drop(a);
        assert!(b.take() && b.take());
    }

    #[test]
    fn name_lives_as_long_as_its_drive_and_has_one_set_of_limits() {
        let named = |tags: Option<u32>| {
            ModelController::named("of-this-test", |limits| {
                limits.tags = tags.unwrap_or(limits.tags);
            })
        };
        let first = named(Some(250)).unwrap();
        let again = named(None).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let other = named(Some(32)).unwrap_err();
        assert_eq!(other.limits.tags, 250);
        drop((first, again, other));
        assert_eq!(named(Some(32)).unwrap().limits.tags, 32);
    }
}
