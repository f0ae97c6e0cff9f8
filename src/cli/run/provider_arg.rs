//! `--provider NAME=SETTINGS_DIR,CREDENTIALS_DIR`.

use std::str::FromStr;

use crate::{
    provider::{CLOUDS, Cloud},
    settings::Folders,
};

/// The settings of a further cloud.
#[derive(Clone, Debug)]
pub struct ProviderArg {
    /// The cloud that they must be for.
    pub cloud: &'static Cloud,
    /// Where they are.
    pub folders: Folders,
}

impl ProviderArg {
    /// How it is written.
    pub const FORM: &str = "NAME=SETTINGS_DIR,CREDENTIALS_DIR";
}

impl FromStr for ProviderArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('=').and_then(|(name, folders)| Some((name, folders.split_once(',')?)));
        let Some((name, (settings, credentials))) =
            parts.filter(|(_, (one, two))| !one.is_empty() && !two.is_empty())
        else {
            return Err(format!("it must be {}", Self::FORM));
        };
        let Some(cloud) = Cloud::named(name) else {
            return Err(format!("{name:?} is none of {}", CLOUDS.map(Cloud::name).join(", ")));
        };
        Ok(Self {
            cloud,
            folders: Folders { settings: settings.into(), credentials: Some(credentials.into()) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_cloud_is_a_name_and_two_folders() {
        let ProviderArg { cloud, folders } = "aws=/etc/aws/settings,/etc/aws/credentials".parse().unwrap();
        assert_eq!(cloud.name(), "aws");
        assert_eq!(folders.settings.to_str(), Some("/etc/aws/settings"));
        assert_eq!(folders.credentials.unwrap().to_str(), Some("/etc/aws/credentials"));
        for (text, says) in [
            ("aws", "it must be NAME="),
            ("aws=/a", "it must be NAME="),
            ("aws=/a,", "it must be NAME="),
            ("=,", "it must be NAME="),
            ("ec2=/a,/b", "\"ec2\" is none of libvirt, aws"),
        ] {
            let problem = text.parse::<ProviderArg>().unwrap_err();
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
