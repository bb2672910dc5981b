//! `cargo xtask primitives`: checks that primitives of `Machine` on `Native` cost no more than the
//! plain operations.
//!
//! Compiles the example `primitives` of the machine crate to optimised assembly and compares each
//! `native_X` with `plain_X`, instruction by instruction, after `assembly` has removed everything
//! that depends only on the position in the file. Link-time optimisation is off, because with it no
//! assembly is produced at this stage; the functions are the same either way, as everything is
//! inlined. The build has a target folder of its own, so that it neither waits for another build
//! nor disturbs one. Called by `main` and `check`; calls cargo as a child process.

mod assembly;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tree;
use assembly::{Assembly, AssemblyBody};

/// Primitives that must be compared, each under this name or under several names that begin with it
/// and `_`.
const PRIMITIVES: &str = "counter_add counter_get counter_raise cpu fence line_held line_read \
                          line_write lock_lock lock_try_lock word_compare_exchange word_fetch_add \
                          word_fetch_and word_fetch_or word_load word_store word_swap work";

/// Primitives that may have more instructions than the plain operation, with the limit on the
/// additional instructions. The limit includes code off the fast path: a lock checks whether it
/// must collect statistics, when it is taken and when it is released.
const MORE: [(&str, usize); 2] = [("lock_lock", 30), ("lock_try_lock", 22)];

/// One primitive and the plain operation that it is compared with, as compiled.
#[derive(Debug, PartialEq, Eq)]
struct PrimitivePair {
    name: String,
    native: AssemblyBody,
    plain: AssemblyBody,
}

impl PrimitivePair {
    /// Returns the number of instructions that the primitive may have beyond those of the plain
    /// operation.
    fn more_max(&self) -> usize {
        MORE.iter().find(|(name, _)| *name == self.name).map_or(0, |(_, more)| *more)
    }

    fn fits(&self) -> bool {
        let most = self.plain.instructions() + self.more_max();
        self.native == self.plain || self.more_max() > 0 && self.native.instructions() <= most
    }
}

/// Builds the example below `root`, compares, and prints a table; returns true if every pair is
/// equal or within its limit.
pub fn run(root: &Path) -> Result<bool> {
    let path = compile(root)?;
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read the assembly {}", path.display()))?;
    let pairs = pairs(&Assembly::parse(&text)?)?;
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
        // Otherwise cargo would consider the example built and not write the assembly again.
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty the build folder {}", folder.display()))?;
    }
    let status = tree::cargo()
        .args(["rustc", "--quiet", "--release", "--package", "millrace-machine"])
        .args(["--features", "std", "--example", "primitives", "--target-dir"])
        .arg(&folder)
        .args(["--", "-C", "lto=off"])
        .arg(format!("--emit=asm={}", path.display()))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .current_dir(root)
        .status()
        .context("cannot run cargo to compile the primitives")?;
    if !status.success() {
        bail!("the example 'primitives' of millrace-machine does not compile; see above");
    }
    Ok(path)
}

fn pairs(assembly: &Assembly) -> Result<Vec<PrimitivePair>> {
    let names = |prefix| assembly.names().filter_map(move |name| name.strip_prefix(prefix));
    let names: BTreeSet<&str> = names("native_").chain(names("plain_")).collect();
    for primitive in PRIMITIVES.split(' ') {
        let is_form = |name: &str| {
            name.strip_prefix(primitive)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        };
        if !names.iter().any(|name| is_form(name)) {
            bail!(
                "the example 'primitives' lacks native_{primitive} and plain_{primitive}; add them"
            );
        }
    }
    let body = |name: String| {
        assembly.body(&name).with_context(|| format!("the assembly has no function '{name}'"))
    };
    let pair = |name: &str| {
        let (native, plain) = (body(format!("native_{name}"))?, body(format!("plain_{name}"))?);
        if native.instructions() == 0 || plain.instructions() == 0 {
            bail!("found no instructions in the pair '{name}'; adapt the parser to this assembly");
        }
        Ok(PrimitivePair { name: name.to_owned(), native, plain })
    };
    names.into_iter().map(pair).collect()
}

/// Formats a line for each pair, with both listings where they differ.
fn table(pairs: &[PrimitivePair]) -> String {
    let mut text = format!("{:<32}{:>13}  outcome\n", "primitive", "instructions");
    for pair in pairs {
        let PrimitivePair { name, native, plain } = pair;
        let (mine, theirs) = (native.instructions(), plain.instructions());
        let counts = format!("{mine} / {theirs}");
        if native == plain {
            text += &format!("{name:<32}{mine:>13}  equal\n");
        } else if pair.fits() {
            let most = pair.more_max();
            text += &format!("{name:<32}{counts:>13}  at most {most} more\n");
        } else {
            text += &format!("{name:<32}{counts:>13}  DIFFERS\n");
            text += &format!("  native_{name}:\n{native}  plain_{name}:\n{plain}");
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
            format!("native_{name}:\n\tretq\n.Lfunc_end0:\n.set plain_{name}, native_{name}\n")
        };
        PRIMITIVES.split(' ').map(both).collect()
    }

    fn pairs_of(text: &str) -> Result<Vec<PrimitivePair>> {
        pairs(&Assembly::parse(text)?)
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
            let text = text.replace(&format!(".set plain_{name}, native_{name}\n"), &plain);
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
            "the example 'primitives' lacks native_lock_lock and plain_lock_lock; add them"
        );
        let alone = complete() + "plain_cpu_twice:\n\tretq\n.Lfunc_end9:\n";
        assert_eq!(message(alone), "the assembly has no function 'native_cpu_twice'");
        let empty = complete() + "native_cpu_0:\n.Lfunc_end9:\nplain_cpu_0 = native_cpu_0\n";
        assert!(message(empty).starts_with("found no instructions in the pair 'cpu_0'"));
    }
}
