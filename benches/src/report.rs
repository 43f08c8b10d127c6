//! The report: a table for people, or one line of JSON for each case and peer.

use std::io::{self, Write};

use serde::Serialize;

use crate::machine;

/// Our limiter against one peer in one case. Lower is better; `target` is the bound.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) group: &'static str,
    pub(crate) case: String,
    pub(crate) peer: &'static str,
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    pub(crate) unit: &'static str,
    pub(crate) ratio: f64,
    /// The ratio that this project promises.
    #[serde(skip)]
    pub(crate) target: Option<f64>,
    /// Rounds that were kept although a thread lost its core, because reruns didn't help.
    #[serde(skip)]
    pub(crate) disturbed: usize,
}

/// Collects lines; with `json` it prints each immediately.
pub(crate) struct Report {
    /// The machine, described before any case chose a core.
    machine: String,
    json: bool,
    group: &'static str,
    lines: Vec<Line>,
    notes: Vec<String>,
    failed: Option<io::Error>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            machine: machine::describe(),
            json,
            group: "",
            lines: Vec::new(),
            notes: Vec::new(),
            failed: None,
        }
    }

    pub(crate) fn start_group(&mut self, name: &'static str) {
        self.group = name;
    }

    /// A sentence below the table.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(format!("{}: {}", self.group, text.into()));
    }

    pub(crate) fn add(&mut self, mut line: Line) {
        line.group = self.group;
        line.ours = rounded(line.ours);
        line.theirs = rounded(line.theirs);
        line.ratio = rounded(line.ratio);
        if self.json
            && let Err(error) = print_json(&line)
        {
            self.failed.get_or_insert(error);
        }
        self.lines.push(line);
    }

    /// The lines so far, to pass them on.
    pub(crate) fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    /// Prints the table, or returns why the lines couldn't be printed.
    pub(crate) fn finish(self) -> io::Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.json {
            return Ok(());
        }
        self.print_table(&mut io::stdout().lock())
    }

    fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.machine)?;
        writeln!(out)?;
        let head = [
            "group", "case", "peer", "ours", "theirs", "unit", "ratio", "target", "",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.lines.iter().map(cells));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: [usize; 9] = std::array::from_fn(|column| width(column).unwrap_or(0));
        for row in &rows {
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                // Names are aligned left, numbers right.
                match column {
                    3 | 4 | 6 | 7 => write!(out, "{cell:>width$}  ")?,
                    8 => write!(out, "{cell}")?,
                    _ => write!(out, "{cell:<width$}  ")?,
                }
            }
            writeln!(out)?;
        }
        writeln!(out)?;
        if self.lines.iter().any(|line| line.disturbed > 0) {
            let why =
                "*n: n rounds kept although a thread lost its core in them, as those that lock do";
            writeln!(out, "{why}")?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        Ok(())
    }
}

impl Line {
    /// A line with a ratio of its own; [`Line::target`] and the rest can be set after it.
    pub(crate) fn new(
        case: impl Into<String>,
        peer: &'static str,
        (ours, theirs, unit): (f64, f64, &'static str),
        ratio: f64,
    ) -> Self {
        Self {
            group: "",
            case: case.into(),
            peer,
            ours,
            theirs,
            unit,
            ratio,
            target: None,
            disturbed: 0,
        }
    }

    pub(crate) fn target(mut self, target: Option<f64>) -> Self {
        self.target = target;
        self
    }
}

fn cells(line: &Line) -> [String; 9] {
    let target = line.target;
    let mut verdict = match target {
        Some(target) if line.ratio <= target => "met".to_owned(),
        Some(_) => "NOT MET".to_owned(),
        None => String::new(),
    };
    if line.disturbed > 0 {
        verdict = format!("{verdict} *{}", line.disturbed);
    }
    [
        line.group.to_owned(),
        line.case.clone(),
        line.peer.to_owned(),
        number(line.ours),
        number(line.theirs),
        line.unit.to_owned(),
        format!("{:.3}", line.ratio),
        target.map_or_else(String::new, |target| format!("{target:.3}")),
        verdict,
    ]
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

/// Four decimals: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn print_json(line: &Line) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_the_seven_fields() {
        let mut line = Line::new("admit-1t", "floor", (10.0, 10.5, "ns"), 0.95).target(Some(1.05));
        line.group = "limiter";
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"group\":\"limiter\",\"case\":\"admit-1t\",\"peer\":\"floor\",\"ours\":10.0,\
             \"theirs\":10.5,\"unit\":\"ns\",\"ratio\":0.95}"
        );
    }

    #[test]
    fn a_row_says_whether_its_target_is_met() {
        let line = |ratio| Line::new("c", "p", (1.0, 1.0, "ns"), ratio).target(Some(1.05));
        assert_eq!(cells(&line(1.05))[8], "met");
        assert_eq!(cells(&line(1.06))[8], "NOT MET");
        let mut disturbed = line(1.0);
        disturbed.disturbed = 3;
        assert_eq!(cells(&disturbed)[8], "met *3");
    }
}
