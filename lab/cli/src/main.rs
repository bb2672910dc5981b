//! The `millrace-lab` program: reads the command line, runs one verb, and exits.
//!
//! Exit status: 0 for success, 1 for a negative answer, 2 for an error. Everything else is in
//! cli.rs (arguments) and `verbs` (one file per verb).

mod cli;
mod verbs;

fn main() -> std::process::ExitCode {
    cli::run()
}
