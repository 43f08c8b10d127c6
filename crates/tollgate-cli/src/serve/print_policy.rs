//! `tollgate serve --print-policy`: prints the policy that would be in force as one text.

use std::io::Write;

use tollgate_engine::Policy;

use super::ServeOptions;
use crate::outcome::CliError;

impl ServeOptions {
    /// Writes the policy: a single file as it is, several files merged.
    pub(super) fn print_policy(&self, out: &mut impl Write) -> Result<(), CliError> {
        self.validate()?;
        let checked = self.load_policy().map_err(CliError::in_one_line)?;
        let mut sources = checked.sources.iter();
        let text = match (sources.next(), sources.next(), &self.policy) {
            (Some(only), None, _) => only.text().to_owned(),
            (_, _, Some(path)) => Policy::read_as_single_text(path)
                .map_err(|rejected| CliError::from(rejected).in_one_line())?,
            (_, _, None) => super::EXAMPLE_POLICY.to_owned(),
        };
        let mut shown = String::new();
        if self.is_in_memory() && self.replicas > 1 {
            shown = format!(
                "# of each limit one of {} replicas enforces its part (--replicas)\n",
                self.replicas
            );
            for note in checked.policy.share_for_replicas(self.replicas).notes {
                shown = shown + "# " + &note + "\n";
            }
        }
        shown.push_str(&text);
        if !shown.ends_with('\n') {
            shown.push('\n');
        }
        let written = out.write_all(shown.as_bytes());
        written.map_err(CliError::failed)
    }
}
