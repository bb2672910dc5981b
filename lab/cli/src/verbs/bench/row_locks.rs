//! Formats the lock statistics of one measured configuration as a table, for `bench --locks`.

use millrace_console::{Form, WIDTH, lock_table, wrapped};
use millrace_experiments::Row;

use super::table::settings;

/// Renders the lock statistics of a measured configuration, below a line with its settings. Returns
/// `None` if `--locks` was not given.
pub fn locks(row: &Row, form: Form) -> Option<String> {
    let machine = row.machine.as_ref()?;
    let locks = machine.locks.as_ref()?;
    let title = format!("locks of {}:", settings(row));
    let title = wrapped(title.split(' ').map(str::to_owned), WIDTH);
    Some(format!("{title}\n{}", lock_table(locks, form)))
}
