//! Why settings cannot be used.

use std::io;
use std::path::PathBuf;

use operator_kit::Message;

use super::folder::FOLDER_LIMIT;

/// Why a pair of folders gives no settings. Every message names the file or the setting, says how to correct it, and shows no
/// value that could be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A folder is not there.
    #[error(
        "the {} folder {} does not exist: mount the {} there, or name another folder with {}",
        role.name(),
        path.display(),
        role.object(),
        role.flag()
    )]
    NoFolder {
        /// What the folder is for.
        role: FolderRole,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A folder or a file in it cannot be read.
    #[error("cannot read {}: {problem}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system says.
        problem: io::ErrorKind,
    },
    /// A pipe, a socket or a device.
    #[error("{} is not a regular file: remove it", path.display())]
    NotAFile {
        /// What is in the way.
        path: PathBuf,
    },
    /// A file's name or content is not text.
    #[error("{} is not UTF-8 text: correct or remove the file", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// With this file the folder holds more than a `ConfigMap` or `Secret` can.
    #[error(
        "with {} the folder exceeds {FOLDER_LIMIT} bytes, more than a ConfigMap or Secret can hold: is it \
         the right folder?",
        path.display()
    )]
    TooLarge {
        /// The file that was one too many.
        path: PathBuf,
    },
    /// The folder changed each time it was read.
    #[error("{} changed each time the operator read it: the operator reads it again when it stops changing", path.display())]
    Unsteady {
        /// The folder.
        path: PathBuf,
    },
    /// `CLOUD_PROVIDER` is not given, and the other settings leave it open.
    #[error(
        "CLOUD_PROVIDER is not set, and {hint}: set it to one of {}",
        known.join(", ")
    )]
    NoProvider {
        /// Why it could not be inferred.
        hint: &'static str,
        /// The names that it may have.
        known: Vec<&'static str>,
    },
    /// `CLOUD_PROVIDER` is none of cloud-api-adaptor's providers.
    #[error(
        "CLOUD_PROVIDER {name:?} is not a provider: it must be one of {}",
        known.join(", ")
    )]
    UnknownProvider {
        /// What was given, cut to 64 characters.
        name: String,
        /// The names that it may have.
        known: Vec<&'static str>,
    },
}

/// What a folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderRole {
    /// The settings, of a `ConfigMap`.
    Settings,
    /// The credentials, of a `Secret`.
    Credentials,
}

impl FolderRole {
    const fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Credentials => "credentials",
        }
    }

    /// The kind of object that is mounted there.
    const fn object(self) -> &'static str {
        match self {
            Self::Settings => "ConfigMap",
            Self::Credentials => "Secret",
        }
    }

    /// The flag that names the folder.
    const fn flag(self) -> &'static str {
        match self {
            Self::Settings => "--settings-dir",
            Self::Credentials => "--credentials-dir",
        }
    }
}

impl SettingsError {
    /// Whether cloud-api-adaptor may make VMs where the settings say, which the operator cannot read. Without a provider that it knows,
    /// it makes none. No settings, or settings that are being written, say nothing yet.
    pub(crate) fn may_have_place(&self) -> bool {
        match self {
            Self::NoFolder { role, .. } => *role != FolderRole::Settings,
            Self::Unsteady { .. } | Self::NoProvider { .. } | Self::UnknownProvider { .. } => false,
            _ => true,
        }
    }

    /// The text in both versions: a status names no folder and no file.
    pub fn message(&self) -> Message {
        let full = self.to_string();
        let public = match self {
            Self::NoFolder { role, .. } => format!("the {} folder does not exist", role.name()),
            Self::Unreadable { problem, .. } => {
                format!("a file or folder of the settings cannot be read ({problem})")
            }
            Self::NotAFile { .. } => "a file of the settings is not a regular file".to_owned(),
            Self::NotText { .. } => "a file of the settings is not UTF-8 text".to_owned(),
            Self::TooLarge { .. } => "a folder of the settings is too large".to_owned(),
            Self::Unsteady { .. } => {
                "a folder of the settings changed each time the operator read it".to_owned()
            }
            Self::NoProvider { .. } | Self::UnknownProvider { .. } => full.clone(),
        };
        Message::new(public, full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_vms_are_made_without_a_provider() {
        let no_provider =
            SettingsError::NoProvider { hint: "no other setting identifies the provider", known: Vec::new() };
        assert!(!no_provider.may_have_place());
        let no_folder = |role| SettingsError::NoFolder { role, path: PathBuf::from("/etc/peer-pods") };
        assert!(!no_folder(FolderRole::Settings).may_have_place());
        assert!(no_folder(FolderRole::Credentials).may_have_place(), "the settings may be there");
        let not_text = SettingsError::NotText { path: PathBuf::from("/etc/LIBVIRT_URI") };
        assert!(not_text.may_have_place());
    }

    #[test]
    fn no_error_names_a_folder_or_file_in_its_version_for_a_status() {
        let path = || PathBuf::from("/etc/private/LIBVIRT_URI");
        for error in [
            SettingsError::NoFolder { role: FolderRole::Settings, path: path() },
            SettingsError::Unreadable { path: path(), problem: io::ErrorKind::PermissionDenied },
            SettingsError::NotAFile { path: path() },
            SettingsError::NotText { path: path() },
            SettingsError::TooLarge { path: path() },
            SettingsError::Unsteady { path: path() },
        ] {
            let message = error.message();
            assert!(!message.for_status().contains("private"), "{}", message.for_status());
            assert!(message.for_log().contains("/etc/private/LIBVIRT_URI"), "{}", message.for_log());
        }
    }
}
