//! Rule: no type has more than 40 methods.
//!
//! Counts the functions of all `impl` blocks without a trait, by crate and name of the type. Tests
//! do not count, and types of the same name in a crate count as one. `xtask/allow/methods.txt`
//! lists types that have more, with their exact number. Called by `tidy::run`.

use std::collections::BTreeMap;

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::Source;

const METHODS_MAX: usize = 40;

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    // For each crate and type: the number of methods, and file and line of the first method.
    let mut types: BTreeMap<String, (usize, &str, usize)> = BTreeMap::new();
    for source in sources {
        for definition in
            source.outline.definitions.iter().filter(|found| !source.is_test(found.line))
        {
            let Some(of) = &definition.method_of else { continue };
            let first = || (0, source.path.as_str(), definition.line);
            types.entry(format!("{}:{of}", source.crate_path())).or_insert_with(first).0 += 1;
        }
    }
    let over = types.into_iter().filter(|(_, (amount, ..))| *amount > METHODS_MAX);
    let excess = |(key, (amount, path, line)): (String, (usize, &str, usize))| {
        let message = format!(
            "{key} has {amount} methods, at most {METHODS_MAX} are allowed; split the type"
        );
        Excess { key, amount, finding: Finding::new(path, line, message) }
    };
    list.check(over.map(excess).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods(count: usize) -> String {
        (0..count).map(|number| format!("fn f{number}() {{}} ")).collect()
    }

    #[test]
    fn methods_of_all_files_add_up_and_those_of_traits_do_not_count() {
        let parts = |count| {
            let first =
                format!("impl A {{ {} }}\nimpl T for A {{ fn t() {{}} }}\n", methods(count));
            let second = format!("impl<M> A<M> {{ {} }}\n", methods(20));
            [
                Source::parse("crates/a/src/b.rs", &first),
                Source::parse("crates/a/src/c.rs", &second),
            ]
        };
        let none = AllowList::default();
        assert_eq!(check(&parts(20), &none), []);
        assert_eq!(check(&parts(21), &none).len(), 1);
        assert_eq!(check(&parts(21), &AllowList::parse("x.txt", "crates/a:A 41\n").unwrap()), []);
        assert_eq!(
            check(&parts(20), &AllowList::parse("x.txt", "crates/a:A 41\n").unwrap()).len(),
            1
        );
    }
}
