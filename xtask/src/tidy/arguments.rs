//! Rule: a function has at most four arguments besides `self`, and none of them is a bare `bool`.
//!
//! More than four arguments belong together in a type, and `true` at a call site says nothing where
//! an enum names the meaning. Functions that a trait demands, closures and tests are exempt.
//! `xtask/allow/arguments.txt` lists, by crate and function, the arguments beyond four, and
//! `xtask/allow/bools.txt` the `bool`s. Called by `tidy::run`.

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Item, Source};

const ARGUMENTS_MAX: usize = 4;

pub fn check_number(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let message = |item: &Item| {
        let arguments = item.takes.arguments;
        format!(
            "`{}` takes {arguments} arguments; group those that belong together in a type",
            item.name
        )
    };
    list.check(excesses(
        sources,
        |item| item.takes.arguments.saturating_sub(ARGUMENTS_MAX),
        message,
    ))
}

pub fn check_bools(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let message = |item: &Item| {
        let bools = item.takes.bools;
        format!("`{}` takes a bare `bool` ({bools}); make it an enum", item.name)
    };
    list.check(excesses(sources, |item| item.takes.bools, message))
}

fn excesses(
    sources: &[Source],
    amount: impl Fn(&Item) -> usize,
    message: impl Fn(&Item) -> String,
) -> Vec<Excess> {
    let mut excesses = Vec::new();
    for source in sources {
        for item in source.outline.items.iter().filter(|item| !source.is_test(item.line)) {
            let key = format!("{}:{}", source.crate_path(), item.name);
            let finding = Finding::new(&source.path, item.line, message(item));
            excesses.push(Excess { key, amount: amount(item), finding });
        }
    }
    excesses.retain(|excess| excess.amount > 0);
    excesses
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fn f(a: u8, b: u8, c: u8, d: u8, e: bool) {}\n\
                        impl T for A { fn g(a: bool) {} }\n\
                        #[cfg(test)]\nmod tests { fn h(a: bool) {} }\n";

    #[test]
    fn excess_arguments_and_bare_bools_fail_unless_listed() {
        let sources = [Source::parse("crates/a/src/b.rs", TEXT)];
        let none = AllowList::default();
        assert_eq!(
            check_number(&sources, &none)[0].to_string(),
            "crates/a/src/b.rs:1: `f` takes 5 arguments; group those that belong together in a type"
        );
        assert_eq!(check_bools(&sources, &none).len(), 1);
        let list = AllowList::parse("x.txt", "crates/a:f 1\n").unwrap();
        assert_eq!(check_number(&sources, &list), []);
        assert_eq!(check_bools(&sources, &list), []);
    }
}
