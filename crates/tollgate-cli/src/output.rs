//! Writes output: reports as text or as JSON, and tables.

use std::fmt;
use std::io::{self, Write};

use indicatif::HumanCount;
use serde::Serialize;

use crate::outcome::CliError;

/// The result of writing the output. A closed pipe, as after `head`, is no error.
pub(crate) fn map_write_error(result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(write_error(error)),
        _ => Ok(()),
    }
}

/// The error for output that can't be written.
pub(crate) fn write_error(error: impl fmt::Display) -> CliError {
    CliError::failed(format_args!("can't write the output: {error}"))
}

/// Writes a line of JSON.
pub(crate) fn write_json(report: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

/// Writes a report as JSON or as text.
pub(crate) fn write_report(
    report: &(impl Serialize + fmt::Display),
    json: bool,
    out: &mut impl Write,
) -> Result<(), CliError> {
    map_write_error(if json {
        write_json(report, out)
    } else {
        write!(out, "{report}")
    })
}

/// The alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnAlign {
    Left,
    Right,
}

/// A table of rows with the same number of cells, two spaces apart, without trailing space.
pub(crate) fn format_columns(rows: &[Vec<String>], align: impl Fn(usize) -> ColumnAlign) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut lines = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match align(column) {
            ColumnAlign::Left => format!("{cell:<width$}"),
            ColumnAlign::Right => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        lines.push_str(line.trim_end());
        lines.push('\n');
    }
    lines
}

/// A count with its noun, such as `2 warnings`.
pub(crate) fn pluralize(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

/// A number with thousands separators: `1,234,567`.
pub(crate) fn format_thousands(number: u64) -> String {
    HumanCount(number).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_lines_up() {
        let rows = [vec!["a", "b", "long"], vec!["name", "200", "1"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let align = |column| {
            if column == 0 {
                ColumnAlign::Left
            } else {
                ColumnAlign::Right
            }
        };
        assert_eq!(
            format_columns(&rows, align),
            "a       b  long\nname  200     1\n"
        );
    }
}
