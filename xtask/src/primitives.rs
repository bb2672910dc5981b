//! `cargo xtask primitives`: checks that primitives of `Machine` on `Native` cost no more than the
//! plain operations.
//!
//! Compiles the test `primitives` of millrace-machine to optimised assembly and compares each
//! function `native_X` with `plain_X`, instruction by instruction. Link-time optimisation is off,
//! because rustc emits no assembly with it. The functions are the same without it, because
//! everything is inlined. The build has a target folder of its own, so that it does not wait for
//! other builds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tree;

/// Names of the primitives of `Machine` to check. Each primitive needs a function `native_X` and a
/// function `plain_X` to compare. X is the primitive's name, alone or followed by `_` and more.
const PRIMITIVES: &str = "counter_add counter_get counter_raise cpu fence line_held line_read \
                          line_write lock_lock lock_try_lock word_compare_exchange word_fetch_add \
                          word_fetch_and word_fetch_or word_load word_store word_swap work";

/// Maximum number of instructions beyond those of the plain operation: taking a lock also checks if
/// lock statistics are on.
const MORE: [(&str, usize); 2] = [("lock_lock", 30), ("lock_try_lock", 22)];

type Functions<'a> = BTreeMap<&'a str, Vec<String>>;

#[derive(Debug)]
struct PrimitivePair {
    name: String,
    native: Vec<String>,
    plain: Vec<String>,
}

impl PrimitivePair {
    fn more_max(&self) -> usize {
        MORE.iter().find(|(name, _)| *name == self.name).map_or(0, |(_, more)| *more)
    }

    fn fits(&self) -> bool {
        let most = instructions(&self.plain) + self.more_max();
        self.native == self.plain || self.more_max() > 0 && instructions(&self.native) <= most
    }
}

/// Builds the test `primitives` below `root`, compares each function `native_X` with `plain_X`,
/// and prints a table. Returns true if every pair is equal or within its limit.
pub fn run(root: &Path) -> Result<bool> {
    let path = compile(root)?;
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read the assembly {}", path.display()))?;
    let pairs = pairs(&functions(&text))?;
    print!("{}", table(&pairs));
    let different = pairs.iter().filter(|pair| !pair.fits()).count();
    println!("primitives: {} pairs, {different} differ", pairs.len());
    Ok(different == 0)
}

fn compile(root: &Path) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = root.join(target).join("primitives");
    let path = folder.join("primitives.s");
    if folder.exists() && !path.exists() {
        // Delete the build folder. Otherwise, cargo takes the build for complete and does not write
        // the missing assembly file again.
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty the build folder {}", folder.display()))?;
    }
    let status = tree::cargo()
        .args(["rustc", "--quiet", "--release", "--package", "millrace-machine"])
        .args(["--features", "std", "--test", "primitives", "--target-dir"])
        .arg(&folder)
        .args(["--", "-C", "lto=off"])
        .arg(format!("--emit=asm={}", path.display()))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .current_dir(root)
        .status()
        .context("cannot run cargo to compile the primitives")?;
    if !status.success() {
        bail!("the test 'primitives' of millrace-machine does not compile; see above");
    }
    Ok(path)
}

/// Reads LLVM's assembly for ELF. A function goes from its label to `.Lfunc_end`. Functions that
/// LLVM merged are aliases, `.set alias, name` or `alias = name`, and come after their function.
fn functions(text: &str) -> Functions<'_> {
    let mut found = Functions::new();
    let mut current: (&str, Vec<String>) = ("", Vec::new());
    for line in text.lines() {
        let set = line.strip_prefix("\t.set\t").and_then(|pair| pair.split_once(", "));
        if let Some((alias, name)) = set.or_else(|| line.split_once(" = "))
            && let Some(body) = found.get(name).cloned()
        {
            found.insert(alias, body);
        } else if line.starts_with(".Lfunc_end") {
            let (name, body) = std::mem::take(&mut current);
            found.insert(name, body);
        } else if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with('.')) {
            current = (name, Vec::new());
        } else if line.starts_with(".LBB") || is_instruction(line) {
            current.1.push(normalised(line));
        }
    }
    found
}

/// Removes the function's number from jump targets (`.LBB7_1`). Also replaces all white space by
/// single blanks.
fn normalised(line: &str) -> String {
    let parts =
        line.split(".LBB").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
    let line = parts.collect::<Vec<_>>().join(".LBB");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_instruction(line: &str) -> bool {
    line.trim_start().starts_with(|c: char| c.is_ascii_alphabetic()) && line.starts_with('\t')
}

fn instructions(body: &[String]) -> usize {
    body.iter().filter(|line| !line.starts_with('.')).count()
}

fn pairs(functions: &Functions<'_>) -> Result<Vec<PrimitivePair>> {
    let names = |prefix| functions.keys().filter_map(move |name| name.strip_prefix(prefix));
    let names: BTreeSet<&str> = names("native_").chain(names("plain_")).collect();
    for primitive in PRIMITIVES.split(' ') {
        let is_form = |name: &&str| {
            let rest = name.strip_prefix(primitive);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        if !names.iter().any(is_form) {
            bail!("the test 'primitives' lacks native_{primitive} and plain_{primitive}; add them");
        }
    }
    let body = |name: String| {
        let body = functions.get(name.as_str()).cloned();
        body.with_context(|| format!("the assembly has no function '{name}'"))
    };
    let pair = |name: &str| {
        let (native, plain) = (body(format!("native_{name}"))?, body(format!("plain_{name}"))?);
        if instructions(&native) == 0 || instructions(&plain) == 0 {
            bail!("found no instructions in the pair '{name}'; adapt the parser to this assembly");
        }
        Ok(PrimitivePair { name: name.to_owned(), native, plain })
    };
    names.into_iter().map(pair).collect()
}

fn table(pairs: &[PrimitivePair]) -> String {
    let mut text = format!("{:<32}{:>13}  outcome\n", "primitive", "instructions");
    for pair in pairs {
        let PrimitivePair { name, native, plain } = pair;
        let (mine, theirs) = (instructions(native), instructions(plain));
        let counts = format!("{mine} / {theirs}");
        if native == plain {
            text += &format!("{name:<32}{mine:>13}  equal\n");
        } else if pair.fits() {
            let most = pair.more_max();
            text += &format!("{name:<32}{counts:>13}  at most {most} more\n");
        } else {
            let list = |body: &[String]| body.join("\n    ");
            text += &format!("{name:<32}{counts:>13}  DIFFERS\n");
            text += &format!("  native_{name}:\n    {}\n", list(native));
            text += &format!("  plain_{name}:\n    {}\n", list(plain));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An assembly with every primitive in both forms, all of them the same.
    fn complete() -> String {
        let both = |name: &str| {
            format!("native_{name}:\n\tretq\n.Lfunc_end0:\n\t.set\tplain_{name}, native_{name}\n")
        };
        PRIMITIVES.split(' ').map(both).collect()
    }

    fn pairs_of(text: &str) -> Result<Vec<PrimitivePair>> {
        pairs(&functions(text))
    }

    #[test]
    fn merged_functions_are_equal_and_each_primitive_has_a_line() {
        let pairs = pairs_of(&complete()).unwrap();
        assert!(pairs.iter().all(|pair| pair.native == pair.plain));
        let table = table(&pairs);
        assert_eq!(table.lines().count(), 1 + PRIMITIVES.split(' ').count());
        assert_eq!(table.lines().nth(4).unwrap().split_whitespace().last(), Some("equal"));
    }

    #[test]
    fn another_instruction_differs_and_both_are_listed() {
        let more = "native_word_swap_x:\n\txchgq %rax, (%rdi)\n\tretq\n.Lfunc_end1:\n\
                    plain_word_swap_x:\n\tmovq %rax, (%rdi)\n\tretq\n.Lfunc_end2:\n";
        let pairs = pairs_of(&(complete() + more)).unwrap();
        let different: Vec<&PrimitivePair> =
            pairs.iter().filter(|pair| pair.native != pair.plain).collect();
        assert_eq!(different.len(), 1);
        let table = table(&pairs);
        assert!(table.contains("2 / 2  DIFFERS\n  native_word_swap_x:\n    xchgq %rax, (%rdi)\n"));
        assert!(table.contains("  plain_word_swap_x:\n    movq %rax, (%rdi)\n    retq\n"));
    }

    #[test]
    fn a_lock_may_have_so_many_instructions_more_and_no_others_may() {
        let outcome = |name: &str, more: usize| {
            let (longer, nops) = (format!("native_{name}:"), "\tnop\n".repeat(more));
            let text = complete().replace(&format!("{longer}\n"), &format!("{longer}\n{nops}"));
            let plain = format!("plain_{name}:\n\tretq\n.Lfunc_end0:\n");
            let text = text.replace(&format!("\t.set\tplain_{name}, native_{name}\n"), &plain);
            let pairs = pairs_of(&text).unwrap();
            pairs.iter().filter(|pair| !pair.fits()).count()
        };
        assert_eq!([outcome("lock_lock", 30), outcome("lock_lock", 31)], [0, 1]);
        assert_eq!(outcome("word_load", 1), 1);
    }

    #[test]
    fn primitive_that_is_missing_or_has_one_form_only_is_an_error() {
        let message = |text: String| pairs_of(&text).unwrap_err().to_string();
        let without = complete().replace("_lock_lock", "_lock_locks");
        assert_eq!(
            message(without),
            "the test 'primitives' lacks native_lock_lock and plain_lock_lock; add them"
        );
        let alone = complete() + "plain_cpu_twice:\n\tretq\n.Lfunc_end9:\n";
        assert_eq!(message(alone), "the assembly has no function 'native_cpu_twice'");
        let empty = complete() + "native_cpu_0:\n.Lfunc_end9:\nplain_cpu_0 = native_cpu_0\n";
        assert!(message(empty).starts_with("found no instructions in the pair 'cpu_0'"));
    }

    const TEXT: &str = "\t.text\n\t.type\tfirst,@function\nfirst:\n.Lfunc_begin3:\n\
        \t.cfi_startproc\n\t#MEMBARRIER\n\tlock\t\tcmpxchgl\t%ecx, (%rdi)\n\tjne\t.LBB3_9\n\
        .Ltmp4:\n\tcallq\t*_ZN3std5mutex4wakeE@GOTPCREL(%rip)\n\
        .LBB3_9:\n\tretq\n.Lfunc_end3:\n\
        \t.size\tfirst, .Lfunc_end3-first\n\t.cfi_endproc\n\
        GCC_except_table3:\n.Lexception1:\n\t.byte\t255\n\
        data:\n\t.quad\tfirst\nsecond:\n\tretq\n.Lfunc_end4:\nthird:\n\tretq\n";

    #[test]
    fn function_is_its_instructions_and_the_labels_jumped_to() {
        let found = functions(TEXT);
        // `third` is cut short: the file ends before its end.
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["first", "second"]);
        let wanted = [
            "lock cmpxchgl %ecx, (%rdi)",
            "jne .LBB_9",
            "callq *_ZN3std5mutex4wakeE@GOTPCREL(%rip)",
            ".LBB_9:",
            "retq",
        ];
        assert_eq!(found["first"], wanted);
        assert_eq!(instructions(&found["first"]), 4);
        assert_eq!(found["second"], ["retq"]);
    }

    #[test]
    fn place_in_file_does_not_matter_but_target_of_jump_does() {
        let function = |number: usize, target: usize| {
            let label = |target| format!(".LBB{number}_{target}");
            let text = format!("f:\n{}:\n\tjne\t{}\n.Lfunc_end0:", label(1), label(target));
            functions(&text)["f"].clone()
        };
        assert_eq!(function(0, 2), function(77, 2));
        assert_ne!(function(0, 2), function(0, 1));
    }

    #[test]
    fn operands_and_called_functions_matter() {
        let call = |line: &str| functions(&format!("f:\n\t{line}\n.Lfunc_end0:\n"))["f"].clone();
        let old = "callq _ZN4core5panic17h0123456789abcdefE";
        assert_ne!(call(old), call(&old.replace("panic", "abort")));
        assert_ne!(call("movq %rax, 8(%rdi)"), call("movq %rax, 16(%rdi)"));
        assert_ne!(call("xchgq %rax, (%rdi)"), call("movq %rax, (%rdi)"));
    }

    #[test]
    fn aliases_in_both_spellings_lead_to_the_function() {
        let text = format!("{TEXT}\t.set\tthird, second\n.globl fourth\nfourth = third\n");
        let found = functions(&text);
        assert_eq!([&found["third"], &found["fourth"]], [&found["second"]; 2]);
        assert_eq!(functions("a = b\nb = a\n"), Functions::new());
    }
}
