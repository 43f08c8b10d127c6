//! Colors: whether they are enabled, and which parts of the output have them.

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use tollgate_engine::render::{self, TextStyle};
use tollgate_engine::{Diagnostic, Sources};

/// Whether text for people has colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Resolves the choice for a stream: `Always` or `Never`.
    ///
    /// ```
    /// use tollgate_cli::Color;
    ///
    /// assert_eq!(Color::Always.resolve_for(&Vec::new()), Color::Always);
    /// assert_eq!(Color::Auto.resolve_for(&Vec::new()), Color::Never); // It is no terminal.
    /// ```
    #[must_use]
    pub fn resolve_for(self, stream: &impl RawStream) -> Self {
        match self {
            Self::Auto if AutoStream::choice(stream) == ColorChoice::Never => Self::Never,
            Self::Auto => Self::Always,
            chosen => chosen,
        }
    }

    /// Diagnostics, with colors if they are enabled.
    pub(crate) fn paint_diagnostics(self, diagnostics: &[Diagnostic], sources: &Sources) -> String {
        let paint = |piece: TextStyle, text: &str| self.paint(piece_style(piece), text);
        render::to_styled_text(diagnostics, sources, &paint)
    }

    /// The label of an error.
    pub(crate) fn error_label(self) -> String {
        self.paint(piece_style(TextStyle::Error), "error:")
    }

    /// A request's outcome, padded to a width.
    pub(crate) fn paint_outcome(self, text: &str, width: usize) -> String {
        let color = match text {
            "allowed" => AnsiColor::Green,
            _ => AnsiColor::Red,
        };
        self.paint(color.on_default(), &format!("{text:width$}"))
    }

    fn paint(self, style: Style, text: &str) -> String {
        match self {
            Self::Always => format!("{style}{text}{style:#}"),
            Self::Auto | Self::Never => text.to_owned(),
        }
    }
}

fn piece_style(piece: TextStyle) -> Style {
    match piece {
        TextStyle::Error => AnsiColor::Red.on_default().bold(),
        TextStyle::Warning => AnsiColor::Yellow.on_default().bold(),
        TextStyle::Frame => AnsiColor::Blue.on_default(),
        TextStyle::Help => AnsiColor::Green.on_default(),
        _ => Style::new(),
    }
}
