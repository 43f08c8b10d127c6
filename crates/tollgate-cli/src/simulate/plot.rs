//! Draws admissions over time as text: a row of block characters for each algorithm, and an axis in seconds.

use std::fmt::Write;

use tollgate_adaptive::simulation::TimePoint;
use tollgate_core::Timestamp;

use super::format::{DAY, HOUR, MINUTE, SECOND, format_decimal, format_nanos};
use super::tally;

/// The most columns of a plot, so that names and plot fit 100 characters.
const MAX_COLUMNS: u128 = 72;

/// The widest column: 72 of them cover all of `Timestamp`, 584 years.
const MAX_COLUMN_WIDTH: u128 = 5_000 * DAY;

/// Columns between two labels of the axis.
const LABEL_SPACING: usize = 10;

/// Blocks for a count: a space for none, then each is an eighth of the highest count more.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Several rows of times with a common axis and scale, so that heights compare across rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextPlot {
    /// Nanoseconds in a column.
    width: u128,
    columns: usize,
    rows: Vec<(&'static str, Vec<usize>)>,
}

impl TextPlot {
    /// A plot up to `end`, with the narrowest round columns that fit.
    pub(super) fn new(end: Timestamp) -> Self {
        let nanos = u128::from(end.as_nanos());
        let fits = |width: &u128| nanos / width < MAX_COLUMNS;
        let width = round_widths().find(fits).unwrap_or(MAX_COLUMN_WIDTH);
        Self {
            width,
            // At most 72, by the choice of the width.
            columns: usize::try_from(nanos / width + 1).unwrap_or(0),
            rows: Vec::new(),
        }
    }

    /// Adds a row for these times.
    pub(super) fn add_row(&mut self, name: &'static str, times: &[Timestamp]) {
        let counts = tally::per_column(times, self.width, self.columns);
        self.rows.push((name, counts));
    }

    /// The plot with names in a column `indent` wide.
    pub(super) fn draw(&self, indent: usize) -> String {
        let counts = || self.rows.iter().flat_map(|(_, counts)| counts);
        let highest = counts().copied().max().unwrap_or(0).max(1);
        let mut text = format!(
            "admissions over time, a column is {}, █ is {highest}\n\n",
            format_nanos(self.width)
        );
        for (name, counts) in &self.rows {
            let blocks = counts.iter().map(|count| block_for_count(*count, highest));
            let line = format!("{name:<indent$}{}", blocks.collect::<String>());
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.push_str(&self.axis(indent));
        text
    }

    /// A ruler with a mark every ten columns, and the time at each mark below it.
    fn axis(&self, indent: usize) -> String {
        let sign = |column| match column {
            0 => '└',
            _ if column % LABEL_SPACING == 0 => '┴',
            _ => '─',
        };
        let ruler: String = (0..self.columns).map(sign).collect();
        let marks = (0..self.columns).step_by(LABEL_SPACING);
        let marks = marks.map(|column| axis_label(self.width * column as u128, self.width));
        let labels: String = marks
            .map(|label| format!("{label:<LABEL_SPACING$}"))
            .collect();
        let (blank, labels) = ("", labels.trim_end());
        format!("{blank:<indent$}{ruler}\n{blank:<indent$}{labels}\n")
    }
}

/// The block for a count. Any count above zero is visible.
fn block_for_count(count: usize, highest: usize) -> char {
    let eighths = (count as u128 * 8).div_ceil(highest as u128);
    let index = usize::try_from(eighths).unwrap_or(8);
    BLOCKS[index.min(8)]
}

/// Round column widths in nanoseconds: 1, 2 or 5 times a power of ten up to 50 s, then whole minutes, hours and days.
fn round_widths() -> impl Iterator<Item = u128> {
    let seconds = (0..11).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u128.pow(power)));
    seconds
        .chain([1, 2, 5, 10, 20, 30].map(|count| count * MINUTE))
        .chain([1, 2, 5, 10].map(|count| count * HOUR))
        .chain([1, 2, 5, 10, 20, 50, 100, 200, 500].map(|count| count * DAY))
        .chain([MAX_COLUMN_WIDTH])
}

/// A time on the axis, in the unit of the columns, with as many decimals as needed: `1.5s`.
fn axis_label(nanos: u128, width: u128) -> String {
    let (unit, length) = match width {
        DAY.. => ("d", DAY),
        HOUR.. => ("h", HOUR),
        MINUTE.. => ("m", MINUTE),
        _ => ("s", SECOND),
    };
    // Only columns in seconds can be a fraction of the unit.
    format_decimal(nanos / length, &format!("{:09}", nanos % length)) + unit
}

const WIDTH: f64 = 860.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 34.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 64.0;
const COLORS: [&str; 6] = [
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf",
];

/// The value that a panel shows of a point.
type PointValue = fn(&TimePoint) -> f64;

const PANELS: [(&str, PointValue); 4] = [
    ("limit", |point| point.limit),
    ("in flight", |point| point.in_flight),
    ("latency, ms (mean)", |point| point.latency),
    ("goodput, a second", |point| point.goodput),
];

/// A chart to which lines are added.
#[derive(Debug)]
pub(super) struct SvgChart {
    title: String,
    changes: Vec<f64>,
    lines: Vec<(String, Vec<TimePoint>)>,
}

impl SvgChart {
    pub(super) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            changes: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Marks a time in seconds at which the scenario changes.
    pub(super) fn add_marker(&mut self, at: f64) {
        self.changes.push(at);
    }

    pub(super) fn add_line(&mut self, name: &str, points: &[TimePoint]) {
        self.lines.push((name.to_owned(), points.to_vec()));
    }

    /// The lines, each with its color.
    fn colored(&self) -> impl Iterator<Item = (&&str, &(String, Vec<TimePoint>))> {
        COLORS.iter().cycle().zip(&self.lines)
    }

    pub(super) fn to_svg(&self) -> String {
        let height = TOP + 4.0 * (PANEL + GAP) + 10.0;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>\n",
            escape_xml(&self.title)
        );
        let places = (0_u32..).map(|number| LEFT + 110.0 * f64::from(number));
        for (x, (color, (name, _))) in places.zip(self.colored()) {
            let (end, label, name) = (x + 18.0, x + 22.0, escape_xml(name));
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"36\" x2=\"{end}\" y2=\"36\" stroke=\"{color}\" stroke-width=\"2\"/>\
                 <text x=\"{label}\" y=\"40\">{name}</text>"
            );
        }
        let tops = (0_u32..).map(|number| TOP + f64::from(number) * (PANEL + GAP));
        for (top, panel) in tops.zip(&PANELS) {
            self.draw_panel(&mut text, top, panel);
        }
        text + "</svg>\n"
    }

    fn draw_panel(&self, text: &mut String, top: f64, (name, shown): &(&str, PointValue)) {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let most = round_up_axis(points().map(shown).fold(0.0, f64::max));
        let ends = points().map(|point| point.at).fold(1.0, f64::max);
        let (right, bottom) = (WIDTH - 14.0, top + PANEL);
        let x = |at: f64| LEFT + (right - LEFT) * at / ends;
        let y = |value: f64| bottom - PANEL * value / most;
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"{}\" fill=\"#333\">{name}</text>\n\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{PANEL}\" fill=\"none\" stroke=\"#bbb\"/>",
            top - 5.0,
            right - LEFT
        );
        for value in [0.0, 0.5, 1.0].map(|part| most * part) {
            let (x, y) = (LEFT - 6.0, y(value) + 4.0);
            let _ = writeln!(
                text,
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\" fill=\"#555\">{value}</text>"
            );
        }
        for at in (0..=6_u32).map(|tick| ends * f64::from(tick) / 6.0) {
            let (x, y) = (x(at), bottom + 14.0);
            let _ = writeln!(
                text,
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#555\">{at:.0} s</text>"
            );
        }
        for at in self.changes.iter().filter(|at| **at < ends - 0.2) {
            let x = x(*at);
            let _ = writeln!(
                text,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#999\" \
                 stroke-dasharray=\"4 3\"/>"
            );
        }
        for (color, (_, points)) in self.colored() {
            let place = |point: &TimePoint| format!("{:.1},{:.1}", x(point.at), y(shown(point)));
            let path = points.iter().map(place).collect::<Vec<_>>().join(" ");
            let _ = writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.3\" points=\"{path}\"/>"
            );
        }
    }
}

/// Rounds up to one significant digit.
fn round_up_axis(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let unit = 10_f64.powf(most.log10().floor());
    (most / unit).ceil() * unit
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_share_one_scale_and_an_axis() {
        let mut plot = TextPlot::new(Timestamp::from_millis(1199));
        let at = |millis: &[u64]| -> Vec<_> {
            millis.iter().copied().map(Timestamp::from_millis).collect()
        };
        plot.width = 100_000_000;
        plot.columns = 12;
        plot.add_row("one", &at(&[0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103]));
        plot.add_row("two", &at(&[250, 1100]));
        assert_eq!(
            plot.draw(5),
            "admissions over time, a column is 100ms, █ is 8\n\
             \n\
             one  █▄\n\
             two    ▁        ▁\n     \
             └─────────┴─\n     \
             0s        1s\n"
        );
    }

    #[test]
    fn columns_are_as_fine_as_fits() {
        for (end, width, columns) in [
            (4990, 100_000_000, 50),
            (2000, 50_000_000, 41),
            (7199, 100_000_000, 72),
            (7200, 200_000_000, 37),
            (300_000, 5_000_000_000, 61),
            (86_400_000, 30 * MINUTE, 49),
            (u64::MAX, 5_000 * DAY, 43),
            (0, 1, 1),
        ] {
            let plot = TextPlot::new(Timestamp::from_millis(end));
            assert_eq!(plot.width, width, "{end}");
            assert_eq!(plot.columns, columns, "{end}");
        }
    }

    #[test]
    fn the_axis_speaks_the_unit_of_the_columns() {
        for (time, width, expected) in [
            (0, 50_000_000, "0s"),
            (1_500_000_000, 50_000_000, "1.5s"),
            (20 * MINUTE, 2 * MINUTE, "20m"),
            (50 * HOUR, 5 * HOUR, "50h"),
            (10 * DAY, DAY, "10d"),
        ] {
            assert_eq!(axis_label(time, width), expected);
        }
    }

    #[test]
    fn a_small_count_still_shows() {
        assert_eq!(block_for_count(0, 1000), ' ');
        assert_eq!(block_for_count(1, 1000), '▁');
        assert_eq!(block_for_count(1000, 1000), '█');
    }
}
