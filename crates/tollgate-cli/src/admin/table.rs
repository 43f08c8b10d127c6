//! Columns for people: as wide as what is in them, numbers to the right.

/// A table with a line of names.
pub(super) fn table(names: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(names[column].chars().count())
    };
    let widths: Vec<_> = (0..names.len()).map(width).collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_counted: Vec<_> = (0..names.len())
        .map(|column| !rows.is_empty() && rows.iter().all(|row| is_number(&row[column])))
        .collect();
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let space = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if is_counted[column] {
                (space.as_str(), "")
            } else {
                ("", space.as_str())
            };
            line.push_str(&format!("{before}{cell}{after}  "));
        }
        format!("{}\n", line.trim_end())
    };
    let mut text = line(names);
    for row in rows {
        let cells: Vec<_> = row.iter().map(String::as_str).collect();
        text.push_str(&line(&cells));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["all", "5", "x"], ["per-user", "120", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["rule", "denied", "why"], &rows),
            "rule      denied  why\nall            5  x\nper-user     120\n"
        );
        assert_eq!(table(&["rule"], &[]), "rule\n");
    }
}
