//! Operations in flight, and inboxes with their completions.
//!
//! Invariants: a key is unique until its slot was reused 2^32 times, so a late cancel cannot affect
//! another operation. The index of a source is reused only after it was released and has nothing in
//! flight, so no completion can reach a wrong inbox. Memory is allocated only when more operations
//! are in flight than ever before. The lists then grow to hold all operations.

use crate::op::{Completion, Op, Source};
use crate::sys;

/// Identifies an operation in flight: slot index in the low half, the slot's generation in the high
/// half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OperationKey(pub(crate) u64);

impl OperationKey {
    fn new(index: usize, generation: u32) -> OperationKey {
        OperationKey(u64::from(generation) << 32 | index as u64)
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationPhase {
    /// The operation was pushed: it is on the ring, or in epoll's queue of operations to start.
    Started,
    Polling,
    Pooled,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationSlot {
    pub(crate) op: Op,
    pub(crate) user_data: u64,
    pub(crate) source: Source,
    pub(crate) phase: OperationPhase,
    /// True if a cancel was pushed for the operation, so that it must not be started again.
    pub(crate) cancelled: bool,
    /// Bytes that a `MSG_WAITALL` operation has moved so far (epoll).
    pub(crate) moved: u32,
    generation: u32,
    live: bool,
}

#[derive(Default)]
struct CompletionInbox {
    completions: Vec<Completion>,
    pending: usize,
    open: bool,
}

const SLOTS: usize = 256;

pub(crate) struct OperationTable {
    slots: Vec<OperationSlot>,
    free_slots: Vec<u32>,
    inboxes: Vec<CompletionInbox>,
    free_sources: Vec<u16>,
    /// Number of completions delivered since the last call of `take_delivered`.
    pub(crate) delivered: usize,
    /// Sum of the positive results of all delivered operations, which approximates the number of
    /// bytes moved. The sum wraps around.
    pub(crate) moved_bytes: u64,
}

impl Default for OperationTable {
    fn default() -> OperationTable {
        OperationTable {
            slots: Vec::with_capacity(SLOTS),
            free_slots: Vec::with_capacity(SLOTS),
            inboxes: Vec::new(),
            free_sources: Vec::new(),
            delivered: 0,
            moved_bytes: 0,
        }
    }
}

impl OperationTable {
    pub(crate) fn open(&mut self) -> Source {
        let index = self.free_sources.pop().unwrap_or_else(|| {
            self.inboxes.push(CompletionInbox::default());
            u16::try_from(self.inboxes.len() - 1).expect("at most 65536 sources")
        });
        let inbox = &mut self.inboxes[usize::from(index)];
        inbox.open = true;
        inbox.completions.reserve(SLOTS);
        Source(index)
    }

    pub(crate) fn release(&mut self, source: Source) {
        let inbox = &mut self.inboxes[usize::from(source.0)];
        assert!(inbox.open, "a source must be released only once");
        inbox.open = false;
        inbox.completions.clear();
        if inbox.pending == 0 {
            self.free_sources.push(source.0);
        }
    }

    pub(crate) fn insert(&mut self, source: Source, user_data: u64, op: Op) -> OperationKey {
        let inbox = &mut self.inboxes[usize::from(source.0)];
        assert!(inbox.open, "an operation was submitted for an event source that was released");
        inbox.pending += 1;
        inbox.completions.reserve(inbox.pending);
        let index = self.free_slots.pop().map_or(self.slots.len(), |index| index as usize);
        let generation = self.slots.get(index).map_or(0, |old| old.generation.wrapping_add(1));
        let slot = OperationSlot {
            op,
            user_data,
            source,
            phase: OperationPhase::Started,
            cancelled: false,
            moved: 0,
            generation,
            live: true,
        };
        match self.slots.get_mut(index) {
            Some(old) => *old = slot,
            None => {
                self.slots.push(slot);
                self.free_slots.reserve(self.slots.len());
            }
        }
        OperationKey::new(index, generation)
    }

    pub(crate) fn get(&mut self, key: OperationKey) -> Option<&mut OperationSlot> {
        let slot = self.slots.get_mut(key.index())?;
        (slot.live && slot.generation == key.generation()).then_some(slot)
    }

    pub(crate) fn complete(&mut self, key: OperationKey, result: i32, flags: u32) {
        let Some(slot) = self.get(key) else { return };
        slot.live = false;
        let (source, user_data, op) = (slot.source, slot.user_data, slot.op);
        self.free_slots.push(key.index() as u32);
        let inbox = &mut self.inboxes[usize::from(source.0)];
        inbox.pending -= 1;
        if inbox.open {
            inbox.completions.push(Completion { user_data, result, flags });
            self.delivered += 1;
            self.moved_bytes =
                self.moved_bytes.wrapping_add(u64::from(result.max(0).unsigned_abs()));
            return;
        }
        if inbox.pending == 0 {
            self.free_sources.push(source.0);
        }
        if matches!(op, Op::Accept { .. }) && result >= 0 {
            sys::close(result);
        }
    }

    /// Returns the key of the operation in flight with this user data that reports to the inbox
    /// `source`. Ignores cancel operations.
    pub(crate) fn find(&self, source: Source, user_data: u64) -> Option<OperationKey> {
        let hit = |slot: &&OperationSlot| {
            slot.live
                && slot.source == source
                && slot.user_data == user_data
                && !matches!(slot.op, Op::Cancel { .. })
        };
        let index = self.slots.iter().position(|slot| hit(&slot))?;
        Some(OperationKey::new(index, self.slots[index].generation))
    }

    pub(crate) fn keys(&self) -> Vec<OperationKey> {
        let live = self.slots.iter().enumerate().filter(|(_, slot)| slot.live);
        live.map(|(index, slot)| OperationKey::new(index, slot.generation)).collect()
    }

    pub(crate) fn take(&mut self, source: Source, into: &mut Vec<Completion>) {
        into.append(&mut self.inboxes[usize::from(source.0)].completions);
    }

    pub(crate) fn pending(&self, source: Source) -> usize {
        self.inboxes[usize::from(source.0)].pending
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    pub(crate) fn outstanding_max(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn take_delivered(&mut self) -> usize {
        std::mem::take(&mut self.delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_source_is_reused_only_when_nothing_is_outstanding() {
        let mut table = OperationTable::default();
        let first = table.open();
        let key = table.insert(first, 1, Op::Nop);
        table.release(first);
        let second = table.open();
        assert_ne!(first, second);
        table.complete(key, 0, 0);
        assert_eq!(table.delivered, 0);
        assert_eq!(table.open(), first);
    }

    #[test]
    fn a_stale_key_names_nothing_after_its_slot_is_reused() {
        let mut table = OperationTable::default();
        let source = table.open();
        let old = table.insert(source, 1, Op::Nop);
        table.complete(old, 0, 0);
        let new = table.insert(source, 2, Op::Nop);
        assert_ne!(old, new);
        table.complete(old, -5, 0);
        assert!(table.get(old).is_none());
        assert_eq!(table.pending(source), 1);
        assert_eq!(table.find(source, 2), Some(new));
        table.complete(new, 9, 0);
        let mut done = Vec::new();
        table.take(source, &mut done);
        assert_eq!(done.iter().map(|c| c.result).collect::<Vec<_>>(), [0, 9]);
    }
}
