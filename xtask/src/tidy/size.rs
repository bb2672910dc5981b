//! Rule: files, functions and structs are small.
//!
//! Only lines outside tests count. `xtask/allow/size.txt` lists larger ones, as `path lines`,
//! `path:function lines` or `path:Struct fields`, with their exact size: when one shrinks, its
//! entry must be lowered or removed. Called by `tidy::run`.

use super::Finding;
use super::allow::{AllowList, Excess};
use super::source::{ItemKind, Source};

const FILE_WARN: usize = 400;
const FILE_MAX: usize = 600;
const FUNCTION_WARN: usize = 40;
const FUNCTION_MAX: usize = 70;
const FIELDS_MAX: usize = 15;

pub fn check(sources: &[Source], list: &AllowList) -> Vec<Finding> {
    list.check(sources.iter().flat_map(excesses).collect())
}

/// Describes long files, and counts long functions.
pub fn warnings(sources: &[Source]) -> Vec<String> {
    let sizes = sources.iter().map(|source| (&source.path, source.line_count()));
    let long = sizes.filter(|(_, lines)| (FILE_WARN + 1..=FILE_MAX).contains(lines));
    let mut warnings: Vec<String> = long
        .map(|(path, lines)| format!("{path}: {lines} lines outside tests; aim at 100 to 300"))
        .collect();
    let functions = sources.iter().flat_map(|source| {
        let items = source.outline.items.iter().filter(|item| !source.is_test(item.line));
        items.filter(|item| item.kind == ItemKind::Function && item.size > FUNCTION_WARN)
    });
    let functions = functions.count();
    if functions > 0 {
        warnings.push(format!("{functions} functions are longer than {FUNCTION_WARN} lines"));
    }
    warnings
}

fn excesses(source: &Source) -> Vec<Excess> {
    let mut excesses = Vec::new();
    let lines = source.line_count();
    if lines > FILE_MAX {
        let message = format!(
            "the file has {lines} of at most {FILE_MAX} lines outside tests; split it by what it owns"
        );
        excesses.push(Excess { amount: lines, ..Excess::of_file(source, 1, message) });
    }
    for item in source.outline.items.iter().filter(|item| !source.is_test(item.line)) {
        let (most, advice) = match item.kind {
            ItemKind::Function => (FUNCTION_MAX, "lines; move a part into a function of its own"),
            ItemKind::Struct => (FIELDS_MAX, "fields; group those that change together"),
        };
        if item.size > most {
            let message = format!("`{}` has {} of at most {most} {advice}", item.name, item.size);
            let finding = Finding::new(&source.path, item.line, message);
            let key = format!("{}:{}", source.path, item.name);
            excesses.push(Excess { key, amount: item.size, finding });
        }
    }
    excesses
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
            ["a.rs:1: `f` has 71 of at most 70 lines; move a part into a function of its own"]
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
            ["size.txt:1: a.rs has shrunk to 650; write this number in the entry"]
        );
        assert_eq!(
            found("// x\n", "a.rs 600\n"),
            ["size.txt:1: a.rs is not needed any more; remove the entry"]
        );
        assert_eq!(found("// x\n", "gone.rs 700\n").len(), 1);
    }

    #[test]
    fn long_files_and_functions_are_warned_of_before_they_fail() {
        let sources = [
            Source::parse("a.rs", &"// x\n".repeat(401)),
            Source::parse("b.rs", &function(41)),
            Source::parse("c.rs", &function(40)),
        ];
        assert_eq!(
            warnings(&sources),
            [
                "a.rs: 401 lines outside tests; aim at 100 to 300",
                "1 functions are longer than 40 lines"
            ]
        );
    }
}
