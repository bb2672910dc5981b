//! Rule: a module with children is `x.rs` beside a folder `x`, so that a file has its module's
//! name.
//!
//! `mod.rs` is allowed only in the folders of integration tests, where Cargo would take any other
//! file for a test of its own. `xtask/allow/modules.txt` lists the remaining files. Called by
//! `tidy::run`.

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::Source;

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let others = sources.iter().filter(|source| {
        let in_tests = source.path.contains("/tests/") && !source.path.contains("/src/");
        source.path.ends_with("/mod.rs") && !in_tests
    });
    let excess = |source: &Source| {
        let folder = source.path.trim_end_matches("/mod.rs");
        let message = format!("module files must not be called mod.rs; move it to {folder}.rs");
        Excess::of_file(source, 1, message)
    };
    list.check(others.map(excess).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> usize {
        check(&[Source::parse(path, "//! X.\n")], &AllowList::default()).len()
    }

    #[test]
    fn only_integration_tests_have_mod_files() {
        assert_eq!(found("crates/a/src/b.rs") + found("crates/a/tests/common/mod.rs"), 0);
        assert_eq!(found("crates/a/src/b/mod.rs"), 1);
        assert_eq!(found("crates/a/src/b/tests/mod.rs"), 1);
    }
}
