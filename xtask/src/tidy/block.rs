//! Rule: the block layer depends on no operating system, and atomics are confined to the machine
//! crates.
//!
//! `crates/block` runs on real cores, on the simulator and in the model checker, so it must reach
//! every lock, atomic, clock and thread through `Machine`: no `std`, no thread-locals, no map with
//! a random seed. A comment must explain each weak memory ordering. Crates other than the machines
//! and the reactor use atomics only in the files that `xtask/allow/atomics.txt` names.

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Source, find_word, has_word, numbered};

const BLOCK: &str = "crates/block/src/";
const BLOCK_ROOT: &str = "crates/block/src/lib.rs";
const ATOMIC_HOMES: [&str; 4] =
    ["crates/machine/", "crates/reactor/", "lab/checker/", "lab/simulator/"];

const FOREIGN: [(&str, &str); 5] = [
    ("std::", "use core, alloc or the trait `Machine`"),
    ("extern crate std", "allowed only under #[cfg(test)]; use core, alloc or the trait `Machine`"),
    ("thread_local", "keep the state in the channel or queue that owns it"),
    ("HashMap", "its order is random; use a BTreeMap, a Vec or an index"),
    ("HashSet", "its order is random; use a BTreeSet, a Vec or an index"),
];

const WEAK: [&str; 4] = ["Relaxed", "Acquire", "Release", "AcqRel"];
const ORDERING_TYPES: [&str; 2] = ["Ordering::", "Order::"];
/// Maximum number of lines between a memory ordering and the end of the comment that explains it.
const REACH: usize = 4;

pub fn check(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with(BLOCK) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if source.path == BLOCK_ROOT && !source.code.lines().any(|line| line == "#![no_std]") {
        findings.push(Finding::new(&source.path, 1, "the block layer lacks `#![no_std]`; add it"));
    }
    for (line, code) in source.product_code() {
        for (name, instead) in FOREIGN {
            if has_word(code, name) {
                let message = format!("`{name}` in the block layer; {instead}");
                findings.push(Finding::new(&source.path, line, message));
            }
        }
        if names_atomics(code) {
            let message = "atomics in the block layer are forbidden; use `Machine::Word`";
            findings.push(Finding::new(&source.path, line, message));
        }
        if let Some(ordering) = weak_ordering(code)
            && !is_explained(&source.comment_above(line, REACH))
        {
            let message = format!(
                "`{ordering}` is not explained; add a comment `pairs with ...` or `Relaxed: why` above"
            );
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    findings
}

pub fn check_list(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let message = "atomics outside of crates/machine and crates/reactor; use their types, or list \
                   this file in xtask/allow/atomics.txt";
    let others = sources.iter().filter(|source| !is_home(&source.path));
    let uses = others.filter_map(|source| {
        let (line, _) = source.product_code().find(|(_, code)| names_atomics(code))?;
        Some(Excess::of_file(source, line, message))
    });
    list.check(uses.collect())
}

/// Returns true if the allow list does not apply to a file, because other rules do. The crates in
/// [`ATOMIC_HOMES`] may use atomics, and `check` forbids atomics in the block layer.
fn is_home(path: &str) -> bool {
    path.starts_with(BLOCK) || ATOMIC_HOMES.iter().any(|home| path.starts_with(home))
}

fn names_atomics(code: &str) -> bool {
    let types = ["AtomicBool", "AtomicPtr", "AtomicU", "AtomicI"];
    let by_type = code
        .split(|c: char| c != '_' && !c.is_alphanumeric())
        .any(|name| types.iter().any(|start| name.starts_with(start)));
    by_type || has_word(code, "sync::atomic")
}

fn weak_ordering(code: &str) -> Option<String> {
    ORDERING_TYPES.iter().find_map(|prefix| {
        find_word(code, prefix).find_map(|at| {
            let name = &code[at + prefix.len()..];
            let weak = WEAK.iter().find(|weak| has_word(name, weak) && name.starts_with(**weak))?;
            Some(format!("{prefix}{weak}"))
        })
    })
}

fn is_explained(comment: &str) -> bool {
    // The phrase "pairs with" may continue on the next line of the comment.
    let words: Vec<&str> = numbered(comment)
        .flat_map(|(_, line)| line.split_whitespace())
        .filter(|word| !word.chars().all(|c| matches!(c, '/' | '!')))
        .collect();
    let joined = words.join(" ").to_lowercase();
    joined.contains("pairs with") || joined.contains("relaxed:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::parse(path, text)).iter().map(|finding| finding.line).collect()
    }

    const FILE: &str = "crates/block/src/queue/tag.rs";

    #[test]
    fn the_block_layer_may_use_core_and_alloc_and_std_in_its_tests() {
        let text = "use core::mem;\nuse alloc::sync::Arc;\n// std::fs\n\
                    #[cfg(test)]\nmod tests { use std::fs; use std::collections::HashMap; }\n";
        assert_eq!(lines(FILE, text), [0_usize; 0]);
        assert_eq!(lines("crates/drives/src/a.rs", "use std::fs;\n"), [0_usize; 0]);
        assert_eq!(lines(BLOCK_ROOT, "//! Block.\n#![no_std]\n"), [0_usize; 0]);
    }

    #[test]
    fn the_block_layer_may_not_name_the_operating_system() {
        let text = "use std::fs;\nuse core::sync::atomic::AtomicU64;\nthread_local! {}\n\
                    struct A { m: HashMap<u8, u8> }\n";
        assert_eq!(lines(FILE, text), [1, 2, 3, 4]);
        assert_eq!(lines(BLOCK_ROOT, "//! Block.\n"), [1]);
    }

    #[test]
    fn a_weak_ordering_says_what_it_pairs_with() {
        let good = "fn f() {\n    // Release: pairs\n    // with the load in `take`.\n    \
                    a.store(1, Ordering::Release);\n    b.load(Order::Relaxed); // Relaxed: a count.\n\
                    c.load(Order::SeqCst);\n    a.cmp(b) == Ordering::Less;\n}\n";
        assert_eq!(lines(FILE, good), [0_usize; 0]);
        let bad = "fn f() {\n    // Sets it.\n    a.store(1, Order::Release);\n}\n";
        assert_eq!(lines(FILE, bad), [3]);
    }

    #[test]
    fn atomics_elsewhere_need_an_entry_and_an_entry_needs_atomics() {
        let use_atomic = "use std::sync::atomic::AtomicU8;\n";
        let sources = [
            Source::parse("crates/machine/src/native.rs", use_atomic),
            Source::parse("lab/experiments/src/a.rs", use_atomic),
            Source::parse("lab/experiments/src/b.rs", "fn f() {}\n"),
        ];
        let exact = AllowList::parse("list", "lab/experiments/src/a.rs\n").unwrap();
        assert_eq!(check_list(&sources, &exact), []);
        let wrong = AllowList::parse("list", "lab/experiments/src/b.rs\n").unwrap();
        let found: Vec<_> = check_list(&sources, &wrong).into_iter().map(|f| f.path).collect();
        assert_eq!(found, ["lab/experiments/src/a.rs", "list"]);
    }
}
