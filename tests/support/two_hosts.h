#pragma once
// Two hosts on this one: network namespaces with a link between them.

#include <cstdlib>
#include <string>

#include <unistd.h>

namespace sherd::test {

/// Programs that run under `on(0, …)` and `on(1, …)` see each other at `address(0)` and
/// `address(1)` alone, as two hosts do, and share no memory. Gone with this object.
class TwoHosts {
 public:
  TwoHosts() {
    const std::string pair = " && ip link add " + link(0) + " type veth peer name " + link(1);
    works_ = shell("ip netns add " + name(0) + " && ip netns add " + name(1) + pair + set_up(0) +
                   set_up(1));
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  ~TwoHosts() {
    shell("ip netns del " + name(0));
    shell("ip netns del " + name(1));
    shell("rm -rf /etc/netns/" + name(0) + " /etc/netns/" + name(1));
  }

  /// Why there are none here; empty if there are.
  [[nodiscard]] std::string fault() const {
    return works_ ? "" : "network namespaces need root, iproute2 and a kernel that has them";
  }
  /// Limits what each sends. False where the kernel cannot.
  [[nodiscard]] bool shape(const std::string& rate) const {
    bool done = true;
    for (const int host : {0, 1}) {
      done = done && shell("ip netns exec " + name(host) + " tc qdisc replace dev " + link(host) +
                           " root tbf rate " + rate + " burst 256kb latency 50ms");
    }
    return done;
  }
  /// What `name` means on that host alone, whatever it means elsewhere; once more for another
  /// address of it, or another name.
  void resolve(int host, const std::string& name_of_host, const std::string& address) const {
    const std::string folder = "/etc/netns/" + name(host);
    shell("mkdir -p " + folder + " && echo " + address + " " + name_of_host + " >> " + folder +
          "/hosts");
  }
  /// Gives that host a second network, where it is alone: what it sends to `silent_address()` is
  /// never answered. Of several addresses of a name it tries that one first. False where the system
  /// cannot.
  [[nodiscard]] bool lead_nowhere(int host) const {
    const std::string inside = "ip -n " + name(host) + " ";
    const std::string on_nowhere = " dev nowhere0";
    return shell(
        "echo precedence ::ffff:" + silent_address() + "/128 100 > /etc/netns/" + name(host) +
        "/gai.conf && " + inside + "link add nowhere0 type veth peer name nowhere1 && " + inside +
        "addr add 10.213.18." + std::to_string(host + 1) + "/24" + on_nowhere + " && " + inside +
        "link set nowhere0 up && " + inside + "link set nowhere1 up && " + inside + "neigh add " +
        silent_address() + " lladdr 02:00:00:00:00:4d" + on_nowhere + " nud permanent");
  }
  /// The end of a cut().
  void restore() const { shell("ip -n " + name(0) + " link set " + link(0) + " up"); }
  /// Cuts the link between them: nothing that is sent arrives any more, and nobody is told.
  void cut() const { shell("ip -n " + name(0) + " link set " + link(0) + " down"); }
  /// Nobody connects to that host any more, which itself connects to others. False where there is
  /// no nft, or no kernel for it.
  [[nodiscard]] bool admit_nobody(int host) const {
    return shell(on(host) +
                 "nft 'add table inet sherd; add chain inet sherd in { type filter hook "
                 "input priority 0; }; add rule inet sherd in tcp flags syn / syn,ack "
                 "drop'");
  }
  [[nodiscard]] static std::string address(int host) {
    return "10.213.17." + std::to_string(host + 1);
  }
  [[nodiscard]] static std::string silent_address() { return "10.213.18.77"; }
  /// What goes before a command for the shell.
  [[nodiscard]] std::string on(int host) const { return "ip netns exec " + name(host) + " "; }
  /// The same, for programs that look at control groups, which `ip netns exec` hides.
  [[nodiscard]] std::string with_control_groups_on(int host) const {
    const std::string hosts = "/etc/netns/" + name(host) + "/hosts";
    return "nsenter --net=/run/netns/" + name(host) + " unshare --mount sh -c 'mount --bind " +
           hosts + " /etc/hosts; exec \"$@\"' sh ";
  }

 private:
  static bool shell(const std::string& command) {
    return std::system(("(" + command + ") > /dev/null 2>&1").c_str()) == 0;
  }
  [[nodiscard]] std::string name(int host) const {
    return "sherd" + std::to_string(::getpid()) + "h" + std::to_string(host);
  }
  [[nodiscard]] std::string link(int host) const {
    return "sh" + std::to_string(::getpid() % 1'000'000) + "h" + std::to_string(host);
  }
  [[nodiscard]] std::string set_up(int host) const {
    const std::string inside = " && ip -n " + name(host);
    return " && ip link set " + link(host) + " netns " + name(host) + inside + " addr add " +
           address(host) + "/24 dev " + link(host) + inside + " link set " + link(host) + " up" +
           inside + " link set lo up";
  }

  bool works_ = false;
};

}  // namespace sherd::test
