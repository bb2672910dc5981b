//! Rule: files, functions, structs and types are small, and a function has few arguments.
//!
//! A function has at most four arguments, and none of them is a `bool`, because `true` at a call
//! site has no meaning. Only lines outside tests count; methods of trait implementations are exempt
//! from the rules on arguments. `xtask/allow/size.txt` lists the exceptions with their exact sizes:
//! when an item shrinks, its entry must be lowered or removed.

use std::collections::BTreeMap;

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{Item, Source};

const FILE_LINES_MAX: usize = 600;
const METHODS_MAX: usize = 40;

type SizeLimit = (fn(&Item) -> usize, usize, [&'static str; 2]);

const LIMITS: [SizeLimit; 4] = [
    (|item| item.lines, 70, ["lines", "move a part into another function"]),
    (|item| item.fields, 15, ["fields", "group fields that change together"]),
    (|item| item.arguments, 4, ["arguments", "group related arguments in a type"]),
    (|item| item.bools, 0, ["bare `bool` arguments", "make them enums"]),
];

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    let mut excesses = excess_methods(sources);
    for source in sources {
        let lines = source.line_count();
        if lines > FILE_LINES_MAX {
            let message = format!(
                "the file has {lines} of at most {FILE_LINES_MAX} lines outside tests; split it by \
                 what it owns"
            );
            excesses.push(Excess { amount: lines, ..Excess::of_file(source, 1, message) });
        }
        for item in source.items() {
            for (size, max, [unit, remedy]) in LIMITS {
                let (amount, name) = (size(item), &item.name);
                let message =
                    format!("`{name}` has {amount} {unit}, at most {max} are allowed; {remedy}");
                let finding = Finding::new(&source.path, item.line, message);
                let key = format!("{}:{name}", source.path);
                excesses.extend((amount > max).then_some(Excess { key, amount, finding }));
            }
        }
    }
    list.check(excesses)
}

/// Returns the types with too many methods, not counting methods of implemented traits. Types with
/// equal names in a crate count as one type.
fn excess_methods(sources: &[Source]) -> Vec<Excess> {
    // For each type of each crate, the number of methods, and the file and line of the first one.
    let mut types: BTreeMap<String, (usize, &str, usize)> = BTreeMap::new();
    for (source, item) in sources.iter().flat_map(|s| s.items().map(move |item| (s, item))) {
        let Some(of) = &item.method_of else { continue };
        let first = (0, source.path.as_str(), item.line);
        types.entry(format!("{}:{of}", source.crate_path())).or_insert(first).0 += 1;
    }
    let over = types.into_iter().filter(|(_, (amount, ..))| *amount > METHODS_MAX);
    over.map(|(key, (amount, path, line))| {
        let message = format!(
            "{key} has {amount} methods, at most {METHODS_MAX} are allowed; split the type"
        );
        Excess { key, amount, finding: Finding::new(path, line, message) }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, list: &str) -> Vec<String> {
        let sources = [Source::parse("a.rs", text)];
        let list = AllowList::parse("size.txt", list).unwrap();
        check(&sources, &list).iter().map(ToString::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines))
    }

    #[test]
    fn sizes_at_their_limits_pass() {
        assert!(found(&"// x\n".repeat(600), "").is_empty());
        assert!(found(&function(70), "").is_empty());
        assert!(found(&format!("struct A {{ {} }}\n", field_list(15)), "").is_empty());
        let long_tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(700));
        assert!(found(&long_tests, "").is_empty());
    }

    fn field_list(count: usize) -> String {
        (0..count).map(|index| format!("f{index}: u8,")).collect()
    }

    #[test]
    fn sizes_past_their_limits_fail() {
        assert_eq!(found(&"// x\n".repeat(601), "").len(), 1);
        assert_eq!(
            found(&function(71), ""),
            ["a.rs:1: `f` has 71 lines, at most 70 are allowed; move a part into another function"]
        );
        assert_eq!(found(&format!("struct A {{ {} }}\n", field_list(16)), "").len(), 1);
    }

    #[test]
    fn an_entry_allows_exactly_what_is_there() {
        assert!(found(&"// x\n".repeat(650), "a.rs 650\n").is_empty());
        assert!(found(&function(80), "a.rs:f 80\n").is_empty());
        assert_eq!(found(&"// x\n".repeat(651), "a.rs 650\n").len(), 1);
    }

    #[test]
    fn an_entry_that_is_too_large_or_not_needed_fails() {
        assert_eq!(
            found(&"// x\n".repeat(650), "a.rs 651\n"),
            ["size.txt:1: a.rs now needs only 650; write this number in the entry"]
        );
        assert_eq!(
            found("// x\n", "a.rs 600\n"),
            ["size.txt:1: a.rs is not needed any more; remove the entry"]
        );
        assert_eq!(found("// x\n", "gone.rs 700\n").len(), 1);
    }

    #[test]
    fn excess_arguments_and_bare_bools_fail_unless_listed() {
        let text = "fn f(a: u8, b: u8, c: u8, d: u8, e: u8) {}\nfn h(a: bool) {}\n\
                    impl T for A { fn g(a: bool) {} }\n\
                    #[cfg(test)]\nmod tests { fn h(a: bool) {} }\n";
        assert_eq!(
            found(text, ""),
            [
                "a.rs:1: `f` has 5 arguments, at most 4 are allowed; group related \
                 arguments in a type",
                "a.rs:2: `h` has 1 bare `bool` arguments, at most 0 are allowed; make them enums"
            ]
        );
        assert_eq!(found(text, "a.rs:f 5\na.rs:h 1\n"), [""; 0]);
    }

    #[test]
    fn methods_of_all_files_add_up_and_those_of_traits_do_not_count() {
        let methods = |count: usize| -> String {
            (0..count).map(|number| format!("fn f{number}() {{}} ")).collect()
        };
        let parts = |count| {
            let first =
                format!("impl A {{ {} }}\nimpl T for A {{ fn t() {{}} }}\n", methods(count));
            let second = format!("impl<M> A<M> {{ {} }}\n", methods(20));
            [
                Source::parse("crates/x/src/a.rs", &first),
                Source::parse("crates/x/src/b.rs", &second),
                Source::parse("crates/y/src/a.rs", &first),
            ]
        };
        assert_eq!(check(&parts(20), &AllowList::default()), []);
        let found = check(&parts(21), &AllowList::default());
        assert_eq!(found.len(), 1);
        let text = "crates/x:A has 41 methods, at most 40 are allowed; split the type";
        assert_eq!(found[0].message, text);
    }
}
