//! `Deadline` of millrace-machine in virtual time: pauses of its owner count for nobody.
#![allow(missing_docs)]

use std::time::Duration;

use millrace_machine::{Deadline, Machine};
use millrace_simulator::{Model, Simulated, Simulation};

const MS: u64 = 1_000_000;

fn simulated(body: impl FnOnce() + Send + 'static) {
    let simulation = Simulation::new(&Model::plain(1, 1), 1).expect("the model must be valid");
    simulation.run(body).expect("the thread's body must end");
}

#[test]
fn a_deadline_passes_on_time_while_its_owner_looks() {
    simulated(|| {
        let start_ns = Simulated::now();
        let mut deadline = Deadline::<Simulated>::after(Duration::from_secs(3));
        while let Some(slice) = deadline.slice() {
            Simulated::charge(slice.as_nanos() as u64);
        }
        let took_ns = Simulated::now() - start_ns;
        assert!((3_000 * MS..3_010 * MS).contains(&took_ns), "{took_ns}");
    });
}

#[test]
fn a_pause_counts_as_one_slice_at_most() {
    simulated(|| {
        let mut deadline = Deadline::<Simulated>::after(Duration::from_secs(10));
        Simulated::charge(500 * MS);
        assert!(!deadline.is_over());
        Simulated::charge(35_000 * MS);
        let left_ns = deadline.left_ns();
        assert!((8_490 * MS..=8_500 * MS).contains(&left_ns), "{left_ns}");
        assert!(deadline.left_with_ns(MS) > left_ns, "a later limit, of the same clock");
    });
}

#[test]
fn what_an_inner_limit_took_counts_and_its_pauses_do_not() {
    simulated(|| {
        let mut outer = Deadline::<Simulated>::after(Duration::from_secs(10));
        outer.within(Duration::from_secs(5), |inner| {
            while let Some(slice) = inner.slice() {
                Simulated::charge(slice.as_nanos() as u64);
            }
        });
        let left_ns = outer.left_ns();
        assert!((4_900 * MS..=5_000 * MS).contains(&left_ns), "{left_ns}");
        outer.within(Duration::from_secs(5), |inner| {
            Simulated::charge(60_000 * MS);
            assert!(!inner.is_over());
        });
        let left_ns = outer.left_ns();
        assert!((3_900 * MS..=4_000 * MS).contains(&left_ns), "{left_ns}");
    });
}

#[test]
fn what_cannot_look_counts_for_as_long_as_it_may_take() {
    simulated(|| {
        let mut deadline = Deadline::<Simulated>::after(Duration::from_secs(10));
        let most = Duration::from_secs(4);
        let charge = |most: Duration| Simulated::charge(most.as_nanos() as u64);
        assert_eq!(deadline.block(most, charge), Some(()));
        let left_ns = deadline.left_ns();
        assert!((5_900 * MS..=6_000 * MS).contains(&left_ns), "{left_ns}");
        deadline.block(most, |_| Simulated::charge(70_000 * MS));
        let left_ns = deadline.left_ns();
        assert!((1_900 * MS..=2_000 * MS).contains(&left_ns), "{left_ns}");
        assert_eq!(deadline.block(most, charge), Some(()), "for as long as there is time");
        assert_eq!(deadline.block(most, charge), None);
    });
}

#[test]
fn the_longest_limit_is_never_over() {
    simulated(|| {
        let mut deadline = Deadline::<Simulated>::after(Duration::MAX);
        Simulated::charge(1_000_000 * MS);
        assert!(!deadline.is_over());
    });
}
