//! `ModelController`: what several modelled drives share: a number of tags and a link.
//!
//! An AHCI controller, an SCU or an HBA of \[FALCON\]'s test bed. Each drive holds a `Port`, which
//! takes and gives back tags. Fair: while a drive waits for its first tags, drives above an equal
//! share get none. Controllers have names, by which specs find them; a name lives as long as a
//! drive holds it. Called by the model's queues; its mutexes are leaves and never held over a call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::link::{Booked, Link};

/// Something that several modelled drives hang on.
#[derive(Debug)]
pub struct ModelController {
    name: String,
    tags: u32,
    bytes_per_s: u64,
    command_ns: u64,
    command_free_ns: Mutex<u64>,
    ports: Mutex<Ports>,
    to_host: Mutex<Link>,
    from_host: Mutex<Link>,
}

/// What bounds it; 0 for no bound.
struct Limits {
    tags: u32,
    bytes_per_s: u64,
    command_ns: u64,
}

/// What a drive's spec asks of it.
#[derive(Debug, Default)]
pub(crate) struct ControllerOptions {
    pub(crate) tags: Option<u32>,
    pub(crate) bytes_per_s: Option<u64>,
    pub(crate) command_ns: Option<u64>,
}

/// The tags that each drive has.
#[derive(Debug, Default)]
struct Ports {
    in_flight: u32,
    list: Vec<PortState>,
}

#[derive(Debug, Default, Clone, Copy)]
struct PortState {
    taken: bool,
    in_flight: u32,
    waiting: bool,
}

/// The controllers that specs have named and drives still hold.
static NAMED: Mutex<Vec<Weak<ModelController>>> = Mutex::new(Vec::new());

/// A panic elsewhere leaves plain counts behind, which are whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModelController {
    /// A controller with `tags` tags for all its drives, 0 for no limit, and a link of
    /// `bytes_per_s` bytes a second in each direction, 0 for no limit.
    #[must_use]
    pub fn new(name: &str, tags: u32, bytes_per_s: u64) -> Arc<ModelController> {
        ModelController::with_command_time(name, Limits { tags, bytes_per_s, command_ns: 0 })
    }

    /// A controller that every command of its drives occupies for a time, one after the other,
    /// before the drive has it.
    fn with_command_time(name: &str, limits: Limits) -> Arc<ModelController> {
        let Limits { tags, bytes_per_s, command_ns } = limits;
        Arc::new(ModelController {
            name: name.into(),
            tags,
            bytes_per_s,
            command_ns,
            command_free_ns: Mutex::new(0),
            ports: Mutex::default(),
            to_host: Mutex::new(Link::new(bytes_per_s)),
            from_host: Mutex::new(Link::new(bytes_per_s)),
        })
    }

    /// The controller of this name that some drive already has, or a new one; what is not given is
    /// as the other drives have it.
    ///
    /// # Errors
    /// The existing one, if it has other limits.
    pub(crate) fn named(name: &str, asked: ControllerOptions) -> Result<Arc<Self>, Arc<Self>> {
        let mut named = lock(&NAMED);
        named.retain(|controller| controller.strong_count() > 0);
        let found = named.iter().filter_map(Weak::upgrade).find(|c| c.name == name);
        if let Some(found) = found {
            let same = asked.tags.is_none_or(|tags| tags == found.tags)
                && asked.bytes_per_s.is_none_or(|rate| rate == found.bytes_per_s)
                && asked.command_ns.is_none_or(|time| time == found.command_ns);
            return if same { Ok(found) } else { Err(found) };
        }
        let limits = Limits {
            tags: asked.tags.unwrap_or(0),
            bytes_per_s: asked.bytes_per_s.unwrap_or(0),
            command_ns: asked.command_ns.unwrap_or(0),
        };
        let made = ModelController::with_command_time(name, limits);
        named.push(Arc::downgrade(&made));
        Ok(made)
    }

    /// Tags for all its drives; 0 for no limit.
    #[must_use]
    pub fn tags(&self) -> u32 {
        self.tags
    }

    /// Bytes a second in each direction; 0 for no limit.
    #[must_use]
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// Nanoseconds for which a command keeps it from others; 0 for none.
    #[must_use]
    pub fn command_ns(&self) -> u64 {
        self.command_ns
    }

    /// Books a command that comes at `now_ns`: when the drive has it.
    pub(crate) fn book_command(&self, now_ns: u64) -> u64 {
        if self.command_ns == 0 {
            return now_ns;
        }
        let mut free_ns = lock(&self.command_free_ns);
        *free_ns = now_ns.max(*free_ns) + self.command_ns;
        *free_ns
    }

    pub(crate) fn book_to_host(&self, now_ns: u64, nr_sectors: u32) -> Booked {
        lock(&self.to_host).book(now_ns, nr_sectors)
    }

    pub(crate) fn book_from_host(&self, now_ns: u64, nr_sectors: u32) -> Booked {
        lock(&self.from_host).book(now_ns, nr_sectors)
    }
}

/// The port of a controller that a drive hangs on.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) controller: Arc<ModelController>,
    index: usize,
}

impl Port {
    /// A free port, with no tags taken.
    pub(crate) fn new(controller: Arc<ModelController>) -> Port {
        let mut ports = lock(&controller.ports);
        let index = ports.list.iter().position(|port| !port.taken).unwrap_or(ports.list.len());
        if index == ports.list.len() {
            ports.list.push(PortState::default());
        }
        ports.list[index] = PortState { taken: true, ..PortState::default() };
        drop(ports);
        Port { controller, index }
    }

    /// Takes a tag; false if there is none, or if another drive has more right to it.
    pub(crate) fn take(&self) -> bool {
        let tags = self.controller.tags;
        if tags == 0 {
            return true;
        }
        let mut ports = lock(&self.controller.ports);
        let busy = ports.list.iter().filter(|port| port.in_flight > 0 || port.waiting).count();
        let share = (tags / busy.max(1) as u32).max(1);
        let others_wait = ports
            .list
            .iter()
            .enumerate()
            .any(|(index, port)| index != self.index && port.waiting && port.in_flight < share);
        let own = ports.list[self.index].in_flight;
        let granted = ports.in_flight < tags && !(others_wait && own >= share);
        ports.list[self.index].waiting = !granted;
        if granted {
            ports.in_flight += 1;
            ports.list[self.index].in_flight += 1;
        }
        granted
    }

    /// Gives tags back.
    pub(crate) fn give(&self, count: u32) {
        if self.controller.tags > 0 {
            let mut ports = lock(&self.controller.ports);
            ports.in_flight -= count;
            ports.list[self.index].in_flight -= count;
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut ports = lock(&self.controller.ports);
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
        let (a, b) = (Port::new(Arc::clone(&controller)), Port::new(Arc::clone(&controller)));
        assert!(a.take() && a.take() && a.take());
        assert!(!a.take() && !b.take());
        a.give(1);
        assert!(b.take());
    }

    #[test]
    fn drive_that_waits_gets_its_share_before_one_that_has_more() {
        let controller = ModelController::new("c", 4, 0);
        let (a, b) = (Port::new(Arc::clone(&controller)), Port::new(Arc::clone(&controller)));
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
        let asked = ControllerOptions { command_ns: Some(150), ..ControllerOptions::default() };
        let controller = ModelController::named("of-turns", asked).unwrap();
        assert_eq!([0, 0, 1_000].map(|now_ns| controller.book_command(now_ns)), [150, 300, 1_150]);
        assert_eq!(ModelController::new("free", 0, 0).book_command(7), 7);
    }

    #[test]
    fn drive_that_is_gone_leaves_its_tags_and_its_wait() {
        let controller = ModelController::new("c", 2, 0);
        let (a, b) = (Port::new(Arc::clone(&controller)), Port::new(Arc::clone(&controller)));
        assert!(a.take() && a.take() && !b.take());
        drop(a);
        assert!(b.take() && b.take());
    }

    #[test]
    fn name_lives_as_long_as_a_drive_holds_it_and_has_one_set_of_limits() {
        let named = |tags| {
            ModelController::named(
                "of-this-test",
                ControllerOptions { tags, ..ControllerOptions::default() },
            )
        };
        let first = named(Some(250)).unwrap();
        let again = named(None).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let other = named(Some(32)).unwrap_err();
        assert_eq!(other.tags(), 250);
        drop((first, again, other));
        assert_eq!(named(Some(32)).unwrap().tags(), 32);
    }
}
