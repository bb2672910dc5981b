//! The `millrace` program: reads the command line, runs one verb, and exits.
//!
//! Exit status: 0 for success, 1 for a negative answer, 2 for an error. Everything else is in
//! cli.rs (arguments), `verbs` (one file per verb) and `config` (the configuration file).

mod cli;
mod config;
mod former_verbs;
mod verbs;
mod views;

fn main() -> std::process::ExitCode {
    cli::run()
}
