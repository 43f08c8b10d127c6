//! The options of `tollgate serve` about those who operate it by the admin listener.

use std::path::{Path, PathBuf};

use clap::Args;
use tollgate_server::{AdminHost, AdminToken, Secret, Settings};

/// Who may operate the service while it runs, and how they reach it.
#[derive(Args, Clone, Debug)]
pub struct Operators {
    /// A file of tokens, one a line, for those who operate it by --admin; without, one is made at the start.
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub admin_token_file: Option<PathBuf>,
    /// Names by which --admin is reached, beside its address and localhost; several with commas.
    #[arg(
        long,
        env = "TOLLGATE_ADMIN_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub admin_host: Vec<AdminHost>,
}

impl Operators {
    /// Adds it to what the service is told, or says why the token can't be read.
    pub(in crate::serve) fn put_into(
        &self,
        settings: &mut Settings,
        state: Option<&Path>,
    ) -> Result<(), String> {
        let given = self.admin_token_file.as_ref().map(Secret::from_file);
        let given = given.transpose();
        let given = given.map_err(|why| format!("--admin-token-file: {why}"))?;
        settings.admin_token = match given {
            Some(secret) => AdminToken::Given(secret),
            None => AdminToken::Made(state.map(ToOwned::to_owned)),
        };
        settings.admin_hosts.clone_from(&self.admin_host);
        Ok(())
    }
}
