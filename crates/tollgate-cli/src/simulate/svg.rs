//! A small writer of SVG: four panels over one time, with a line for each law.

use std::fmt::Write;

use tollgate_adaptive::simulation::Point;

const WIDTH: f64 = 860.0;
const PANEL: f64 = 130.0;
const GAP: f64 = 34.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 64.0;
const COLORS: [&str; 6] = [
    "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf",
];

/// What a panel shows of a point.
type Shown = fn(&Point) -> f64;

const PANELS: [(&str, Shown); 4] = [
    ("limit", |point| point.limit),
    ("in flight", |point| point.in_flight),
    ("latency, ms (mean)", |point| point.latency),
    ("goodput, a second", |point| point.goodput),
];

/// A drawing that lines are added to.
#[derive(Debug)]
pub(super) struct Drawing {
    title: String,
    changes: Vec<f64>,
    lines: Vec<(String, Vec<Point>)>,
}

impl Drawing {
    pub(super) fn new(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            changes: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Something changes at this time, in seconds.
    pub(super) fn change(&mut self, at: f64) {
        self.changes.push(at);
    }

    pub(super) fn line(&mut self, name: &str, points: &[Point]) {
        self.lines.push((name.to_owned(), points.to_vec()));
    }

    pub(super) fn finish(&self) -> String {
        let height = TOP + 4.0 * (PANEL + GAP) + 10.0;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>\n",
            escaped(&self.title)
        );
        for (number, (name, _)) in self.lines.iter().enumerate() {
            let x = LEFT + 110.0 * real(number);
            let color = COLORS[number % COLORS.len()];
            let end = x + 18.0;
            let _ = writeln!(
                text,
                "<line x1=\"{x}\" y1=\"36\" x2=\"{end}\" y2=\"36\" stroke=\"{color}\" stroke-width=\"2\"/>\
                 <text x=\"{}\" y=\"40\">{}</text>",
                end + 4.0,
                escaped(name)
            );
        }
        for (number, panel) in PANELS.iter().enumerate() {
            self.panel(&mut text, TOP + real(number) * (PANEL + GAP), panel);
        }
        text + "</svg>\n"
    }

    fn panel(&self, text: &mut String, top: f64, (name, shown): &(&str, Shown)) {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let most = round_up(points().map(shown).fold(0.0, f64::max));
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
        for part in [0.0, 0.5, 1.0] {
            let (label, at) = (LEFT - 6.0, y(most * part));
            let _ = writeln!(
                text,
                "<text x=\"{label}\" y=\"{}\" text-anchor=\"end\" fill=\"#555\">{}</text>",
                at + 4.0,
                most * part
            );
        }
        for tick in 0..=6_u32 {
            let at = ends * f64::from(tick) / 6.0;
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555\">{at:.0} s</text>",
                x(at),
                bottom + 14.0
            );
        }
        for at in self.changes.iter().filter(|at| **at < ends - 0.2) {
            let _ = writeln!(
                text,
                "<line x1=\"{0:.1}\" y1=\"{top}\" x2=\"{0:.1}\" y2=\"{bottom}\" stroke=\"#999\" \
                 stroke-dasharray=\"4 3\"/>",
                x(*at)
            );
        }
        for (number, (_, points)) in self.lines.iter().enumerate() {
            let path: Vec<_> = points
                .iter()
                .map(|point| format!("{:.1},{:.1}", x(point.at), y(shown(point))))
                .collect();
            let _ = writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.3\" points=\"{}\"/>",
                COLORS[number % COLORS.len()],
                path.join(" ")
            );
        }
    }
}

/// The next number of one digit, and zeros.
fn round_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let unit = 10_f64.powf(most.log10().floor());
    (most / unit).ceil() * unit
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[expect(
    clippy::cast_precision_loss,
    reason = "there are a few lines and panels"
)]
fn real(number: usize) -> f64 {
    number as f64
}
