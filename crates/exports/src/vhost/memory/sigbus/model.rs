//! Models of the table of guarded mappings for the model checker. A fault may replace only memory
//! of a guarded mapping that is not being unmapped.
//!
//! The models run the production code of entry.rs. The signal handler runs as a thread of its own,
//! which allows more interleavings than a real handler.

use std::sync::Arc;

use millrace_checker::plant::Plant;
use millrace_checker::{Checked, CheckedLine, CheckedWord, Explorer, ensure};
use millrace_machine::{Line, Thread, Word};

use super::entry::{Mapping, MappingEntry};
use crate::vhost::models::{holds_but_for, spawn};

fn entry() -> Arc<MappingEntry<CheckedWord>> {
    let [state, start, end, page, pins, hit] = [0; 6].map(CheckedWord::new);
    Arc::new(MappingEntry { state, start, end, page, pins, hit })
}

fn mapping(start: u64, end: u64) -> Mapping {
    Mapping { start, end, page: start }
}

/// One table entry is reused: first for a mapping above the faulting address, then for one below
/// it. A handler that mixed the values of both mappings would replace memory that is in neither.
fn another_mapping_takes_the_entry() {
    let entry = entry();
    let (high, low) = (mapping(40, 50), mapping(10, 20));
    ensure(entry.claim(high), "it was free");
    let handler = Arc::clone(&entry);
    let fault = spawn(move || {
        ensure(handler.pin(30).is_none(), "a fault outside all mappings must find no mapping");
    });
    entry.retire::<Checked>();
    ensure(entry.claim(low), "nobody else takes it");
    ensure(fault.join(), "the handler ends");
}

#[test]
fn a_fault_between_two_mappings_of_one_entry_is_in_neither() {
    let explorer = Explorer::new().exhaustive();
    let bugs = [Plant::FaultLooksOnce];
    holds_but_for("one entry, two mappings", explorer, &bugs, another_mapping_takes_the_entry);
}

/// Scenario: one thread unmaps a mapping while another thread handles a fault in that mapping. Then
/// the table entry is reused.
fn a_mapping_is_unmapped() {
    let (entry, place) = (entry(), Arc::new(CheckedLine::new(())));
    let first = mapping(10, 20);
    ensure(entry.claim(first), "it was free");
    let (handler, there) = (Arc::clone(&entry), Arc::clone(&place));
    let fault = spawn(move || {
        if let Some(pinned) = handler.pin(15) {
            ensure(pinned == mapping(10, 20) || pinned == mapping(12, 18), "a mixture");
            // While the table entry is pinned, no other thread may use the mapping's memory. If one
            // did, the model checker would report a conflict with the following write.
            there.write();
            handler.note_hit();
            handler.unpin();
        }
    });
    entry.retire::<Checked>();
    place.write();
    ensure(entry.claim(mapping(12, 18)), "nobody else takes it");
    ensure(fault.join(), "the handler ends");
    entry.retire::<Checked>();
}

#[test]
fn a_mapping_stays_until_the_handler_that_replaces_it_has_ended() {
    let explorer = Explorer::new().preemptions(4);
    let bugs = [Plant::FaultUnpinned, Plant::FaultLooksOnce];
    holds_but_for("a mapping goes", explorer, &bugs, a_mapping_is_unmapped);
}

fn two_claim_one_entry() {
    let entry = entry();
    let other = Arc::clone(&entry);
    let second = spawn(move || {
        if other.claim(mapping(10, 20)) {
            ensure(other.pin(15) == Some(mapping(10, 20)), "its own mapping");
            other.unpin();
            other.retire::<Checked>();
        }
    });
    if entry.claim(mapping(40, 50)) {
        ensure(entry.pin(45) == Some(mapping(40, 50)), "its own mapping");
        entry.unpin();
        entry.retire::<Checked>();
    }
    ensure(second.join(), "the other ends");
}

#[test]
fn an_entry_has_one_mapping_at_a_time() {
    holds_but_for("two claims", Explorer::new().exhaustive(), &[], two_claim_one_entry);
}
