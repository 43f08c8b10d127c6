//! Which brackets and quotes of a YAML text are open at some place.

use super::Scene;

/// Something that is open: where, and by which sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) sign: char,
}

/// What is open.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) brackets: Vec<Opened>,
    pub(super) quote: Option<Opened>,
    /// Whether a value may begin here: only there are quotes and brackets more than text.
    fresh: bool,
}

impl Open {
    /// At the place where the parser gave up.
    pub(super) fn at(scene: &Scene<'_>) -> Self {
        let mut open = Self::default();
        for (number, line) in scene.lines.iter().enumerate().take(scene.line + 1) {
            let end = if number == scene.line {
                scene.column
            } else {
                usize::MAX
            };
            open.line(number, line, end);
        }
        open
    }

    fn line(&mut self, number: usize, line: &str, end: usize) {
        let mut signs = line.chars().enumerate().take(end).peekable();
        let mut before = ' ';
        if self.quote.is_none() {
            self.fresh = true;
        }
        while let Some((column, sign)) = signs.next() {
            let next = signs.peek().map(|(_, next)| *next);
            if let Some(quote) = self.quote {
                match sign {
                    '\\' if quote.sign == '"' => {
                        signs.next();
                    }
                    '\'' if quote.sign == '\'' && next == Some('\'') => {
                        signs.next();
                    }
                    _ if sign == quote.sign => self.quote = None,
                    _ => {}
                }
                before = sign;
                continue;
            }
            if sign == '#' && before.is_whitespace() {
                return;
            }
            self.take(
                Opened {
                    line: number,
                    column,
                    sign,
                },
                next,
            );
            before = sign;
        }
    }

    fn take(&mut self, opened: Opened, next: Option<char>) {
        let in_flow = !self.brackets.is_empty();
        let ends = next.is_none_or(char::is_whitespace);
        match opened.sign {
            ' ' | '\t' => {}
            '"' | '\'' if self.fresh => {
                self.quote = Some(opened);
                self.fresh = false;
            }
            '{' | '[' if self.fresh || in_flow => {
                self.brackets.push(opened);
                self.fresh = true;
            }
            '}' | ']' if in_flow => {
                self.brackets.pop();
                self.fresh = false;
            }
            ',' if in_flow => self.fresh = true,
            ':' | '-' | '?' if ends => self.fresh = true,
            _ => self.fresh = false,
        }
    }
}
