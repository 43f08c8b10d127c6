//! Colours: whether they are wanted, and which piece has which.

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use tollgate_engine::render::{self, Piece};
use tollgate_engine::{Diagnostic, Sources};

/// Whether what people read has colours.
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
    /// What this comes to for a stream: `Always` or `Never`.
    ///
    /// ```
    /// use tollgate_cli::Color;
    ///
    /// assert_eq!(Color::Always.on(&Vec::new()), Color::Always);
    /// assert_eq!(Color::Auto.on(&Vec::new()), Color::Never); // It is no terminal.
    /// ```
    #[must_use]
    pub fn on(self, stream: &impl RawStream) -> Self {
        match self {
            Self::Auto if AutoStream::choice(stream) == ColorChoice::Never => Self::Never,
            Self::Auto => Self::Always,
            chosen => chosen,
        }
    }

    /// Diagnostics, in colours if that was chosen.
    pub(crate) fn diagnostics(self, diagnostics: &[Diagnostic], sources: &Sources) -> String {
        let paint = |piece: Piece, text: &str| self.paint(style(piece), text);
        render::painted(diagnostics, sources, &paint)
    }

    /// The word that an error of a command begins with.
    pub(crate) fn error(self) -> String {
        self.paint(style(Piece::Error), "error:")
    }

    /// Whether a request passes, in a field of this width.
    pub(crate) fn outcome(self, text: &str, width: usize) -> String {
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

fn style(piece: Piece) -> Style {
    match piece {
        Piece::Error => AnsiColor::Red.on_default().bold(),
        Piece::Warning => AnsiColor::Yellow.on_default().bold(),
        Piece::Frame => AnsiColor::Blue.on_default(),
        Piece::Help => AnsiColor::Green.on_default(),
        _ => Style::new(),
    }
}
