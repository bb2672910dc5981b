//! Arguments of `bench --beside`.
//!
//! Parsed by clap as a part of `BenchArgs`; read by beside.rs.

use std::str::FromStr;

use clap::Args;
use millrace_console::words::whole;

use super::row_flags::rows_only;

/// Flags that `--beside` excludes, because `--beside` compares only plain measurements on this
/// machine.
const NO_ROWS: &str = "calibrate client jobfile locks machine program states trace vm";

/// Flags that compare `bench` with other programs, such as fio.
#[derive(Debug, Clone, Args)]
pub struct BesideArgs {
    /// Compare this workload with another program, NAME=COMMAND, in rounds that run both. The shell
    /// runs COMMAND, which must print a JSON report of fio or of `bench --json`. Repeat --beside
    /// for several programs
    #[arg(long, value_name = "NAME=COMMAND", conflicts_with_all = rows_only(NO_ROWS))]
    pub beside: Vec<OtherProgram>,
    /// With --beside, the number of times that each program is measured
    #[arg(long, value_name = "N", requires = "beside", default_value_t = 5)]
    #[arg(value_parser = whole::<u32>(1..=1000))]
    pub rounds: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherProgram {
    pub name: String,
    pub command: String,
}

impl FromStr for OtherProgram {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<OtherProgram, &'static str> {
        let (name, command) = text.split_once('=').ok_or("write NAME=COMMAND")?;
        Ok(OtherProgram { name: name.to_owned(), command: command.to_owned() })
    }
}
