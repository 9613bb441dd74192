//! Label values of closed sets, as enums.

/// Declares an enum whose variants are the values that one label can have.
macro_rules! label_values {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of the declaration.
            #[allow(dead_code, reason = "not every label's series are made in advance")]
            $vis const ALL: [$name; [$($text),+].len()] = [$($name::$variant),+];

            /// The value of the label.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)+
                }
            }
        }

        impl prometheus_client::encoding::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> Result<(), std::fmt::Error> {
                std::fmt::Write::write_str(encoder, self.as_str())
            }
        }
    };
}

pub(crate) use label_values;

label_values! {
    /// The list of the pod's spec that a container is in.
    pub enum ContainerType {
        /// A regular container.
        Container = "container",
        /// An init container, sidecars included.
        InitContainer = "init_container",
        /// An ephemeral container.
        EphemeralContainer = "ephemeral_container",
    }
}
