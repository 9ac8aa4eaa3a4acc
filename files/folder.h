#pragma once
// Folders that are made, removed and replaced as a whole, and links that may not lead out of one.

#include <string>

namespace sherd::files {

/// Makes the folder and those above it. Throws Error(CannotWrite), naming the path and why.
void make_folder(const std::string& folder);

/// Removes a folder and what is in it; one that is not there is fine. Throws Error(StorageIo).
void remove_folder(const std::string& folder);

/// Gives a complete folder its name, in the place of an older one, and makes that durable. The name
/// always has the old or the new folder, except on a file system or in a container that cannot
/// exchange two names (`renameat2`): there the old one is `<to>.old` for a moment. Throws
/// Error(StorageIo).
void replace_folder(const std::string& from, const std::string& to);

/// Refuses a link that leads out of `folder`, so that an untrusted folder cannot name the
/// reader's other files. A link may point into its own folder, or from a snapshot of the Hugging
/// Face hub's cache (`models--x/snapshots/revision`) into that model's `blobs`. What cannot be
/// resolved is left to the code that opens it. Throws Error(BadData), naming the target.
void check_link(const std::string& folder, const std::string& file);

}  // namespace sherd::files
