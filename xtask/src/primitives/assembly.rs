//! Extracts functions from the compiler's assembly, without everything that depends on their
//! position in the file.
//!
//! Understands LLVM's text for ELF targets as far as needed: a function goes from its label to
//! `.Lfunc_end`; directives, comments and unused labels are ignored; local labels are renumbered in
//! order of use. Functions that LLVM merged appear as `.set alias, name` or `alias = name`. Pure
//! text, no input or output. Called by `primitives`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Result, bail};

/// The functions of one assembly file, by name.
#[derive(Debug, Default)]
pub struct Assembly {
    bodies: BTreeMap<String, AssemblyBody>,
    /// Name that each alias stands for, which may be an alias too.
    aliases: BTreeMap<String, String>,
}

/// The normalised lines of one function: instructions, and labels that are jump targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssemblyBody(Vec<String>);

impl Assembly {
    pub fn parse(text: &str) -> Result<Self> {
        let mut assembly = Self::default();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some((alias, name)) = alias(line) {
                assembly.aliases.insert(alias.to_owned(), name.to_owned());
            }
            // Local labels outside functions belong to data.
            let Some(name) = label(line).filter(|name| !is_local(name)) else { continue };
            let rest = lines.clone();
            let inside: Vec<&str> =
                rest.take_while(|line| !is_end(line) && !is_other_symbol(line)).collect();
            match lines.clone().nth(inside.len()) {
                Some(end) if is_end(end) => {
                    assembly.bodies.insert(name.to_owned(), AssemblyBody::normalised(&inside));
                    lines.nth(inside.len());
                }
                // A data symbol has no end marker; the next symbol follows.
                _ if !inside.iter().any(|line| is_instruction(line.trim())) => {}
                _ => bail!("the function '{name}' has no '.Lfunc_end'; the file is cut short"),
            }
        }
        Ok(assembly)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.bodies.keys().chain(self.aliases.keys()).map(String::as_str)
    }

    pub fn body(&self, name: &str) -> Option<AssemblyBody> {
        let mut name = name;
        // Each step leads to another alias, so a chain is no longer than their number.
        for _ in 0..self.aliases.len() {
            match self.aliases.get(name) {
                Some(next) => name = next,
                None => break,
            }
        }
        self.bodies.get(name).cloned()
    }
}

impl AssemblyBody {
    fn normalised(lines: &[&str]) -> Self {
        let wanted = |line: &&str| label(line).is_some() || is_instruction(line);
        let lines: Vec<&str> = lines.iter().map(|line| line.trim()).filter(wanted).collect();
        let instructions = lines.iter().filter(|line| label(line).is_none());
        let used: BTreeSet<&str> =
            instructions.flat_map(|line| words(line)).filter(|word| is_local(word)).collect();
        let mut numbers = BTreeMap::new();
        let mut kept = Vec::new();
        for line in lines {
            match label(line) {
                Some(name) if !used.contains(name) => {}
                _ => kept.push(normalised_line(line, &mut numbers)),
            }
        }
        AssemblyBody(kept)
    }

    pub fn instructions(&self) -> usize {
        self.0.iter().filter(|line| label(line).is_none()).count()
    }
}

impl fmt::Display for AssemblyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| match label(line) {
            Some(_) => writeln!(f, "  {line}"),
            None => writeln!(f, "    {line}"),
        })
    }
}

fn normalised_line<'a>(line: &'a str, numbers: &mut BTreeMap<&'a str, usize>) -> String {
    let mut text = String::new();
    let mut rest = line;
    for word in words(line) {
        let at = word.as_ptr() as usize - rest.as_ptr() as usize;
        text += &rest[..at];
        rest = &rest[at + word.len()..];
        if is_local(word) {
            let next = numbers.len();
            text += &format!(".L{}", numbers.entry(word).or_insert(next));
        } else {
            text += word;
        }
    }
    text += rest;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Iterates over the names, numbers and registers of a line, without punctuation.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')))
        .filter(|word| !word.is_empty())
}

fn label(line: &str) -> Option<&str> {
    let name = line.strip_suffix(':')?;
    (!name.is_empty() && words(name).eq([name])).then_some(name)
}

fn alias(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let pair = match line.strip_prefix(".set") {
        Some(pair) => pair.split_once(','),
        None => line.split_once(" = "),
    };
    let (alias, name) = pair?;
    let (alias, name) = (alias.trim(), name.trim());
    (words(alias).eq([alias]) && words(name).eq([name])).then_some((alias, name))
}

fn is_local(name: &str) -> bool {
    name.starts_with(".L")
}

fn is_end(line: &str) -> bool {
    label(line).is_some_and(|name| name.starts_with(".Lfunc_end"))
}

fn is_other_symbol(line: &str) -> bool {
    label(line).is_some_and(|name| !is_local(name))
}

/// Returns true if a trimmed line is an instruction, not a label, directive or comment.
fn is_instruction(line: &str) -> bool {
    let starts = |c: char| c.is_ascii_alphabetic();
    line.starts_with(starts) && label(line).is_none() && alias(line).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\t.text\n\t.globl\tfirst\n\t.type\tfirst,@function\nfirst:\n.Lfunc_begin3:\n\
        \t.cfi_startproc\n\t#MEMBARRIER\n\tlock\t\tcmpxchgl\t%ecx, (%rdi)\n\tjne\t.LBB3_9\n\
        .Ltmp4:\n\tcallq\t*_ZN3std5mutex4wakeE@GOTPCREL(%rip)\n\
        .LBB3_9:\n\tjmp\t.LBB3_12\n.LBB3_12:\n\tretq\n.Lfunc_end3:\n\
        \t.size\tfirst, .Lfunc_end3-first\n\t.cfi_endproc\n\
        GCC_except_table3:\n.Lexception1:\n\t.byte\t255\n\
        data:\n\t.quad\tfirst\n\
        second:\n\tretq\n.Lfunc_end4:\n";

    fn body(text: &str, name: &str) -> AssemblyBody {
        Assembly::parse(text).unwrap().body(name).expect("a function of the text")
    }

    #[test]
    fn function_is_its_instructions_and_the_labels_jumped_to() {
        let wanted = "    lock cmpxchgl %ecx, (%rdi)\n    jne .L0\n    \
                      callq *_ZN3std5mutex4wakeE@GOTPCREL(%rip)\n  .L0:\n    jmp .L1\n  .L1:\n    \
                      retq\n";
        let first = body(TEXT, "first");
        assert_eq!(first.to_string(), wanted);
        assert_eq!(first.instructions(), 5);
        assert_eq!(body(TEXT, "second").to_string(), "    retq\n");
    }

    #[test]
    fn data_is_no_function() {
        let names: Vec<String> =
            Assembly::parse(TEXT).unwrap().names().map(str::to_owned).collect();
        assert_eq!(names, ["first", "second"]);
    }

    #[test]
    fn place_in_file_does_not_matter_but_target_of_jump_does() {
        let function = |labels: [&str; 2], target: &str| {
            let [a, b] = labels;
            let text =
                format!("f:\n{a}:\n\tincl %eax\n{b}:\n\tjne {a}\n\tjne {target}\n.Lfunc_end0:");
            body(&text, "f")
        };
        let here = function([".LBB0_1", ".LBB0_2"], ".LBB0_2");
        assert_eq!(here, function([".LBB77_5", ".LBB77_4"], ".LBB77_4"));
        assert_ne!(here, function([".LBB0_1", ".LBB0_2"], ".LBB0_1"));
    }

    #[test]
    fn operands_and_called_functions_matter() {
        let call = |line: &str| body(&format!("f:\n\t{line}\n.Lfunc_end0:\n"), "f");
        let old = "callq _ZN4core5panic17h0123456789abcdefE";
        assert_ne!(call(old), call(&old.replace("panic", "abort")));
        let new = "callq *_RNvNtCsjrHSEGnQ3l9_3std9panicking5count@GOTPCREL(%rip)";
        assert_ne!(call(new), call(&new.replace("3std", "4core")));
        assert_ne!(call("movq %rax, 8(%rdi)"), call("movq %rax, 16(%rdi)"));
        assert_ne!(call("xchgq %rax, (%rdi)"), call("movq %rax, (%rdi)"));
    }

    #[test]
    fn aliases_in_both_spellings_lead_to_the_function() {
        let text = format!("{TEXT}\t.set\tthird, second\n.globl fourth\nfourth = third\n");
        assert_eq!(body(&text, "third"), body(TEXT, "second"));
        assert_eq!(body(&text, "fourth"), body(TEXT, "second"));
        let looped = Assembly::parse("a = b\nb = a\n").unwrap();
        assert!(looped.body("a").is_none());
    }

    #[test]
    fn function_without_an_end_is_an_error() {
        let error = Assembly::parse("f:\n\tretq\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the function 'f' has no '.Lfunc_end'; the file is cut short"
        );
    }
}
